import os
import subprocess
import sys

import pytest

from moebench.launch.torchrun import free_port

pytestmark = pytest.mark.e2e

RANK = """
import atexit, os, time
import torch
import torch.distributed as dist
from moebench.rank.leaving import leave

dist.init_process_group("gloo")
kept = dist.group.WORLD
atexit.register(print, "torn down")
if os.environ["RANK"] == "1":
    time.sleep(1)
pending = dist.all_reduce(torch.ones(1000), async_op=True)
print("done")
leave()
"""


def test_ranks_leave_together_and_the_interpreter_is_not_torn_down():
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [(*rank.communicate(timeout=60), rank.returncode) for rank in ranks]
    assert ended == [("done\n", "", 0)] * 2
