import os
import subprocess
import sys

import pytest

from moebench.launch.torchrun import free_port

pytestmark = pytest.mark.e2e

RANK = """
import atexit, os, sys, time
from pathlib import Path
import torch.distributed as dist
from moebench.rank.leaving import leave

dist.init_process_group("gloo")
kept = dist.group.WORLD
atexit.register(print, "torn down")
if os.environ["RANK"] == "1":
    time.sleep(1)
    Path(sys.argv[1]).touch()
leave()
"""


def test_ranks_leave_together_and_the_interpreter_is_not_torn_down(tmp_path):
    worked = tmp_path / "worked"
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, worked],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    first = ranks[0].communicate(timeout=60)
    assert worked.exists()
    assert [first, ranks[1].communicate(timeout=60)] == [("", "")] * 2
    assert [rank.returncode for rank in ranks] == [0, 0]
