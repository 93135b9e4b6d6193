"""Backends in detail, on real ranks: one torchrun of 2 ranks and one of 4, each running every battery item."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.backends.battery.items import ITEMS
from tests.backends.battery.world import World

from moebench.launch.torchrun import environment, free_port

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def run_battery(folder: Path, ranks: int) -> list[dict[str, str | None]]:
    """What every rank found: for each item None, or a traceback."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=static"),
        *("--master-addr=127.0.0.1", f"--master-port={free_port()}", "-m", "tests.backends.battery", str(folder)),
    ]
    env = environment(ranks) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="session")
def batteries(tmp_path_factory):
    done: dict[int, list[dict[str, str | None]]] = {}

    def battery(ranks: int) -> list[dict[str, str | None]]:
        if ranks not in done:
            done[ranks] = run_battery(tmp_path_factory.mktemp(f"battery-{ranks}"), ranks)
        return done[ranks]

    return battery


ALONE = [name for name, item in ITEMS.items() if item.__module__.endswith((".repeat", ".retention", ".uninitialised"))]
"""Items that mean something at one rank, where the exchange hands back what it was given."""


@pytest.fixture
def one_thread():
    """As a rank has: the products are so small that threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("item", ALONE)
def test_on_one_rank(item):
    ITEMS[item](World(0, 1))


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_on_real_ranks(batteries, ranks, item):
    complaints = {rank: found[item] for rank, found in enumerate(batteries(ranks)) if found[item] is not None}
    assert complaints == {}, "\n".join(f"rank {rank}: {text}" for rank, text in complaints.items())
