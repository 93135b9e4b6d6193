import subprocess
import sys
from pathlib import Path

import pytest

from moebench.launch.torchrun import environment, free_port

ROOT = Path(__file__).parents[3]


@pytest.mark.e2e
def test_every_kind_of_case_on_two_real_ranks_of_the_double():
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=static"),
        *("--master-addr=127.0.0.1", f"--master-port={free_port()}", "-m", "tests.backends.dist_moe_library"),
    ]
    env = environment(2) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
