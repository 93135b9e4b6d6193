import os
import subprocess
import sys
import time

from moebench.launch.leftovers import end_leftovers

SLEEPS = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(100)"]


def start(**environment):
    process = subprocess.Popen(SLEEPS, env=os.environ | environment, start_new_session=True, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_what_carries_the_mark_of_the_run_is_ended_and_nothing_else(tmp_path):
    mine, other, unmarked = start(MOEBENCH_RUN=str(tmp_path)), start(MOEBENCH_RUN=f"{tmp_path}-2"), start()
    try:
        assert end_leftovers(tmp_path) == [mine.pid]
        assert mine.wait(20) == -9
        time.sleep(0.05)
        assert (other.poll(), unmarked.poll()) == (None, None)
        assert end_leftovers(tmp_path) == []
    finally:
        for process in (mine, other, unmarked):
            process.kill()
            process.communicate()
