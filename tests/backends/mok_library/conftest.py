"""A process group of one rank, and a machine on which the double may run."""

import pytest
import torch
import torch.distributed as dist

from moebench.backends.mok import library_limits
from moebench.backends.mok.library import MokLibrary


@pytest.fixture(autouse=True)
def one_thread():
    """Products here are small, and threads that wait for each other are slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def blackwell(monkeypatch):
    """What the adapter asks of the machine and of the launch is there; the GPU is the CPU."""
    monkeypatch.setattr(MokLibrary, "missing", classmethod(lambda cls: None))
    monkeypatch.setattr(library_limits, "why_launch_does_not_fit", lambda case: None)
    monkeypatch.setattr(library_limits, "current_gpu", lambda: torch.device("cpu"))
