"""A process in which a kernel traps between two layers; `close` must raise the device's error and close nothing."""

import sys

import torch
import torch.distributed as dist
from tests.backends.dist_moe_library.building import library_case, prepare
from tests.backends.dist_moe_library.double import make_double

if __name__ == "__main__":
    double = sys.modules["dist_moe"] = make_double()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ready = prepare(library_case(), device="cuda")
    ready.run()
    torch._assert_async(torch.zeros(1, device="cuda"))
    try:
        ready.backend.close()
    finally:
        print("closed:", double.contexts[0].closed, flush=True)
