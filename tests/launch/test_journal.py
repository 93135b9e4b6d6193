from moebench.launch.journal import Entry, Journal
from moebench.status import Reason, Status


def test_entries_are_read_back_in_order(tmp_path):
    journal = Journal(tmp_path)
    entries = [
        Entry(case="a", attempt=1, launch="001-ep2"),
        Entry(case="a", attempt=1, status=Status.FAILED, reason=Reason.TIMEOUT, message="no\nending ☂"),
    ]
    for entry in entries:
        journal.add(entry)
    assert list(journal.read()) == entries
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 2


def test_a_torn_last_line_is_passed_over(tmp_path):
    journal = Journal(tmp_path)
    journal.add(Entry(case="a", attempt=1, status=Status.ACCEPTED))
    journal.add(Entry(case="b", attempt=1, status=Status.ACCEPTED, message="☂"))
    whole = journal.path.read_bytes()
    for cut in range(1, len(whole) - whole.index(b"\n") - 1):
        journal.path.write_bytes(whole[:-cut])
        assert [entry.case for entry in journal.read()] in (["a"], ["a", "b"])
    journal.path.write_bytes(whole[:-10])
    assert [entry.case for entry in journal.read()] == ["a"]


def test_a_run_without_a_journal_has_no_entries(tmp_path):
    assert list(Journal(tmp_path).read()) == []
