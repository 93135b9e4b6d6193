"""Which attempt counts, and that any prefix of a journal is a valid history."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.launch.history import History
from moebench.launch.journal import Entry, Journal, Sweep
from moebench.status import REASONS, Reason, Status

A, F, R = Status.ACCEPTED, Status.FAILED, Status.REJECTED


def attempts(*ends, key="k"):
    """Entries of attempts 1, 2, ... at one case, each (status, reason) or none for one that never ended."""
    for number, end in enumerate(ends, 1):
        yield Entry(case="a", attempt=number, launch="001", key=key)
        if end is not None:
            yield Entry(case="a", attempt=number, launch="001", key=key, status=end[0], reason=end[1])


CRASH, SPREAD, WRONG, GOOD = (F, Reason.CRASHED), (R, Reason.SPREAD), (R, Reason.INCORRECT), (A, None)


@pytest.mark.parametrize(
    ("ends", "counts", "final"),
    [
        ([CRASH, GOOD], 2, True),
        ([GOOD, CRASH], 1, True),
        ([GOOD, GOOD], 2, True),
        ([SPREAD, CRASH], 2, False),
        ([WRONG], 1, True),
        ([GOOD, None], 1, True),
        ([CRASH, None], 1, False),
    ],
)
def test_the_last_accepted_attempt_counts_else_the_last_that_ended(ends, counts, final):
    found = History(attempts(*ends)).counts("a")
    assert (found.number, found.is_final) == (counts, final)


def test_an_accepted_attempt_of_older_content_does_not_count_beside_a_newer_one():
    lines = [*attempts(GOOD, key="old"), Entry(case="a", attempt=2, key="new", status=F, reason=Reason.CRASHED)]
    assert History(lines).counts("a").number == 2


def test_an_attempt_that_never_ended_is_told_and_its_number_not_used_again():
    history = History(attempts(CRASH, None))
    assert [attempt.number for attempt in history.unended("a")] == [2]
    assert history.next_number("a") == 3
    assert (History([]).next_number("a"), History([]).counts("a")) == (1, None)


def test_an_attempt_belongs_to_the_sweep_that_began_it():
    one, two = (Sweep(pid=1, host="h", surroundings={"torch": v}) for v in ("1", "2"))
    begun, ended = attempts(GOOD)
    assert History([one, begun, two, ended]).counts("a").surroundings == {"torch": "1"}
    assert History([one, two, begun, ended]).sweeps == 2


def test_not_run_is_a_word_and_no_attempt():
    history = History([Entry(case="a", attempt=0, status=Status.NOT_RUN, message="out of time")])
    assert (history.attempts("a"), history.why_not_run("a")) == ([], "out of time")


LINES = st.lists(
    st.builds(Sweep, pid=st.integers(0, 9), host=st.text(max_size=3), surroundings=st.just({"torch": "2"}))
    | st.sampled_from([(s, r) for s in Status for r in [None, *REASONS[s]]] + [None]).flatmap(
        lambda end: st.builds(
            Entry,
            case=st.sampled_from("abc"),
            attempt=st.integers(0, 3),
            key=st.sampled_from(["k", "l", None]),
            status=st.just(end[0] if end else None),
            reason=st.just(end[1] if end else None),
            message=st.text(max_size=5) | st.none(),
        )
    ),
    max_size=12,
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(LINES, st.data())
def test_any_prefix_of_a_journal_replays_to_a_valid_history(tmp_path_factory, lines, data):
    """Whatever was on disk when the writer was killed: whole lines count, a torn one does not, and a case's state
    only moves forward."""
    run = tmp_path_factory.mktemp("run")
    journal = Journal(run)
    for line in lines:
        journal.add(line)
    whole = journal.path.read_bytes() if lines else b""
    cut = data.draw(st.integers(0, len(whole)))
    journal.path.write_bytes(whole[:cut])
    kept = list(journal.read())
    assert kept == lines[: len(kept)]
    assert whole[:cut].count(b"\n") <= len(kept) <= whole[:cut].count(b"\n") + 1
    before, after = History(kept), History(lines)
    for case in "abc":
        counts = before.counts(case)
        assert counts is None or counts in before.attempts(case)
        assert before.next_number(case) <= after.next_number(case)
        assert not {a.number for a in before.unended(case)} & {a.number for a in before.attempts(case) if a.status}


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 200))
def test_a_line_behind_a_torn_one_is_a_line_of_its_own(tmp_path_factory, cut):
    journal = Journal(tmp_path_factory.mktemp("run"))
    first = Entry(case="a", attempt=1, status=A, message="x\u2028y\x85z")
    second = Entry(case="b", attempt=1, status=A)
    journal.add(first)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole[: max(0, len(whole) - cut)])
    journal.add(second)
    assert [line.case for line in journal.read()] in (["b"], ["a", "b"])
    assert list(journal.read())[-1] == second
    assert all(json.loads(line) for line in journal.path.read_bytes().split(b"\n")[-2:-1])
