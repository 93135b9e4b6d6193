"""Which rank is named, from what torchrun and the ranks left behind."""

from types import SimpleNamespace

import pytest

from moebench.launch.blame import blame, blame_hang
from moebench.launch.hang import Stack
from moebench.rank.progress import Event
from moebench.status import Reason

PEER_LOST = "RuntimeError in timing: [pair.cc:547] Connection closed by peer [127.0.0.1]:42"


def left(tmp_path, failures=(), died=(), oom=False, log=b"", torchrun_log=b"", status=1):
    """What a launch left: (rank, exit code, second) by torchrun, (rank, error, reason) by the ranks, and logs."""
    (tmp_path / "rank.log").write_bytes(log)
    (tmp_path / "torchrun.log").write_bytes(torchrun_log)
    return SimpleNamespace(
        failures=lambda: [{"rank": rank, "exit_code": code, "time": time} for rank, code, time in failures],
        pids={0: 1, 1: 2},
        died=[(rank, Event(0.0, 1, "died", "a-case", 1, error, reason)) for rank, error, reason in died],
        oom_killed=lambda: oom,
        exit_status=status,
        rank_log=lambda rank: tmp_path / "rank.log",
        spec=SimpleNamespace(folder=tmp_path),
    )


def test_a_killed_rank_comes_before_those_that_lost_it(tmp_path):
    launch = left(tmp_path, [(0, 13, 5), (1, -9, 5), (2, -15, 4)], [(0, PEER_LOST, Reason.CRASHED)], log=b"my log\n")
    assert blame(launch) == (Reason.CRASHED, "rank 1 was killed by SIGKILL", "my log")


def test_a_kill_for_want_of_memory_is_out_of_memory(tmp_path):
    assert blame(left(tmp_path, [(1, -9, 5)], oom=True))[0] is Reason.OUT_OF_MEMORY
    assert blame(left(tmp_path, [(1, -11, 5)], oom=True))[:2] == (Reason.CRASHED, "rank 1 was killed by SIGSEGV")


@pytest.mark.parametrize("reason", [Reason.CRASHED, Reason.OUT_OF_MEMORY])
def test_a_ranks_own_error_comes_before_a_lost_peer_and_has_the_reason_that_it_gave(tmp_path, reason):
    died = [(0, PEER_LOST, Reason.CRASHED), (1, "IndexError in check: row 7 of 5", reason)]
    launch = left(tmp_path, [(0, 13, 5), (1, 13, 5)], died)
    assert blame(launch)[:2] == (reason, "rank 1: IndexError in check: row 7 of 5")


def test_a_rank_that_left_without_a_word_comes_before_one_that_lost_it(tmp_path):
    """torchrun's times are whole seconds, so both may carry the same one."""
    died = [(0, PEER_LOST, Reason.CRASHED)]
    launch = left(tmp_path, [(0, 13, 5), (1, 7, 5)], died, log=b"first\nlast words \xff\n")
    assert blame(launch) == (Reason.CRASHED, "rank 1 ended with exit status 7", "first\nlast words �")


def test_where_all_lost_a_peer_the_first_is_named(tmp_path):
    launch = left(tmp_path, died=[(1, PEER_LOST, Reason.CRASHED), (0, PEER_LOST, Reason.CRASHED)])
    assert blame(launch)[:2] == (Reason.CRASHED, f"rank 1: {PEER_LOST}")


def test_a_rank_that_left_with_status_0_is_named_before_the_one_that_lost_it(tmp_path):
    launch = left(tmp_path, [(0, 13, 5)], [(0, PEER_LOST, Reason.CRASHED)], log=b"bye\n")
    assert blame(launch) == (Reason.CRASHED, f"rank 1 left without a word; rank 0: {PEER_LOST}", "bye")


@pytest.mark.parametrize(
    ("status", "how"), [(0, "ended with status 0"), (1, "ended with status 1"), (-9, "was killed by SIGKILL")]
)
def test_a_torchrun_that_ends_without_a_failed_rank_is_quoted(tmp_path, status, how):
    reason, message, log = blame(left(tmp_path, torchrun_log=b"address already in use\n", status=status))
    assert reason is Reason.CRASHED
    assert message.startswith(f"torchrun {how}, and no rank said why")
    assert log == "address already in use"


def test_after_a_hang_the_stack_or_last_words_of_the_rank_that_held_up_the_others_are_quoted(tmp_path):
    launch = left(tmp_path, log=b"my log\n")
    waits = Stack([("/x/torch/distributed/distributed_c10d.py", 9, "barrier")])
    launch.stacks = lambda: {0: waits, 1: Stack([("/x/mine.py", 7, "spin")])}
    said = "rank 1 was at mine.py:7 in spin; rank 0 waited in barrier"
    assert blame_hang(launch) == (said, 'File "/x/mine.py", line 7 in spin')
    launch.stacks = lambda: {0: waits, 1: None}
    assert blame_hang(launch) == ("rank 1 did not answer", "my log")
    launch.stacks = lambda: {0: waits, 1: waits}
    assert blame_hang(launch) == ("ranks 0, 1 waited in barrier", "")
