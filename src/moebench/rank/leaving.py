"""How a rank's process ends once all its work is done."""

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def leave() -> NoReturn:
    """End this process with status 0 once every rank has come here, without tearing the interpreter down.

    A worker thread of gloo may hold the last reference of a tensor of the last collective, and one that drops it in an
    interpreter that is being torn down aborts the process (pytorch issue 190489). Destroying the group joins that
    thread, unless something still refers to the group.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
