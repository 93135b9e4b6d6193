"""Ranks agree, before the first collective of each phase, whether all of them can go on."""

from enum import IntEnum

import torch
import torch.distributed as dist


class Verdict(IntEnum):
    OK = 0
    UNSUPPORTED = 1
    CRASHED = 2
    OUT_OF_MEMORY = 3
    INCORRECT = 4
    STOP = 5


def agree(mine: Verdict, rank: int, world_size: int, device: torch.device) -> list[Verdict]:
    """Verdicts of all ranks, by one all-reduce; each rank then draws the same conclusion."""
    verdicts_P = torch.zeros(world_size, dtype=torch.int32, device=device)
    verdicts_P[rank] = int(mine)
    if world_size > 1:
        dist.all_reduce(verdicts_P)
    return [Verdict(v) for v in verdicts_P.tolist()]
