import sys

import pytest
import torch
import torch.distributed as dist
from tests.backends.dist_moe_library.double import make_double


@pytest.fixture
def double(monkeypatch):
    """The contract double in place of the library, and this process as the only rank."""
    module = make_double()
    monkeypatch.setitem(sys.modules, "dist_moe", module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield module
    dist.destroy_process_group()
    torch.set_num_threads(threads)
