import json

from moebench.rank.progress import Follower, Progress


def test_events_come_once_in_the_order_of_their_times(tmp_path):
    ranks = [Progress(tmp_path / f"rank-{rank}.jsonl") for rank in (0, 1)]
    follower = Follower(tmp_path)
    ranks[1].tell("start")
    ranks[0].tell("check", "a-case", 1)
    assert [(rank, e.phase, e.case) for rank, e in follower.new_events()] == [
        (1, "start", None),
        (0, "check", "a-case"),
    ]
    assert follower.new_events() == []
    ranks[1].tell("died", "a-case", 1, "no")
    ((rank, event),) = follower.new_events()
    assert (rank, event.phase, event.attempt, event.error) == (1, "died", 1, "no")


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path, follower = tmp_path / "rank-10.jsonl", Follower(tmp_path)
    line = json.dumps({"time": 1.0, "pid": 7, "phase": "timing", "case": "ü"}, ensure_ascii=False).encode() + b"\n"
    cut = line.index("ü".encode()) + 1
    path.write_bytes(line + line[:cut])
    assert [(rank, e.case) for rank, e in follower.new_events()] == [(10, "ü")]
    assert follower.new_events() == []
    path.write_bytes(line + line)
    assert len(follower.new_events()) == 1


def test_a_folder_that_is_not_there_yet_has_no_events(tmp_path):
    assert Follower(tmp_path / "later").new_events() == []
