"""Who holds the others up, read off real dumps of faulthandler."""

import faulthandler
import threading
import time

import pytest

from moebench.launch.hang import Stack, read_stack, who_hangs

ELASTIC = "/v/site-packages/torch/distributed/distributed_c10d.py"


def stack(*frames):
    return Stack([(file, line, function) for file, line, function in frames])


WAITS = stack((ELASTIC, 5, "barrier"), (ELASTIC, 90, "wrapper"), ("/w/my_backend.py", 12, "layer"))
GLOO = stack(("/w/moebench/rank/exchange.py", 37, "wait"), ("/w/my_backend.py", 12, "layer"))
SPINS = stack(("/v/site-packages/torch/nn/functional.py", 1, "linear"), ("/w/my_backend.py", 30, "spin"))


@pytest.mark.parametrize(
    ("stacks", "guilty", "said"),
    [
        ({0: WAITS, 1: SPINS}, [1], "rank 1 was at my_backend.py:30 in spin; rank 0 waited in barrier"),
        ({0: GLOO, 1: SPINS}, [1], "rank 1 was at my_backend.py:30 in spin; rank 0 waited in a collective"),
        ({0: WAITS, 1: None, 2: WAITS}, [1], "rank 1 did not answer"),
        ({0: WAITS, 1: GLOO}, [], "rank 0 waited in barrier; rank 1 waited in a collective"),
        ({0: SPINS, 1: SPINS}, [], "rank 0 was at my_backend.py:30 in spin; rank 1 was at my_backend.py:30 in spin"),
    ],
)
def test_a_rank_outside_a_collective_or_without_an_answer_holds_up_the_rest(stacks, guilty, said):
    assert who_hangs(stacks) == (guilty, said)


def test_a_dump_of_faulthandler_is_read_with_other_threads_and_garbage_around_it(tmp_path):
    log = tmp_path / "stderr.log"
    thread = threading.Thread(target=time.sleep, args=(0.5,))
    thread.start()
    with log.open("wb") as file:
        file.write(b"\xff garbage\nCurrent thread 0x1 (most recent call first):\n  no frame\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
        file.write(b"and more\n")
    thread.join()
    frames = read_stack(log).frames
    assert frames[0][2] == "test_a_dump_of_faulthandler_is_read_with_other_threads_and_garbage_around_it"
    assert frames[0][0] == __file__
    assert read_stack(log).place.startswith("test_hang.py:")


def test_a_log_without_a_dump_or_no_log_is_a_rank_that_did_not_answer(tmp_path):
    (tmp_path / "log").write_bytes(b"hello\n")
    assert read_stack(tmp_path / "log") is None
    assert read_stack(tmp_path / "absent") is None
