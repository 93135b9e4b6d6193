"""A backend that is right except for one fault, on rank 1; the case's F says which."""

import os
import signal
import sys
import time
from typing import Any

import torch
from torch import Tensor

from moebench.backends.protocol import Setup
from moebench.backends.torch_ep import TorchBackend
from moebench.cases.case import Case
from moebench.cases.shape import Shape

FAULTS = (
    "unsupported",
    "raise in set-up",
    "out of memory in set-up",
    "nan",
    "wrong row",
    "slow",
    "slow too",
    "garbage",
    "raise",
    "out of memory",
    "exit",
    "kill",
    "hang",
    "skip a collective",
)
GUILTY = 1
GARBAGE = b"\xff\xfe\x1b[31m\x00 not text \x80\n"


def F_of(fault: str) -> int:
    """Multiples of 8, from 104 on so that ids sort as the faults do."""
    return 104 + 8 * FAULTS.index(fault)


def fault_of(shape: Shape) -> str:
    return FAULTS[(shape.F - 104) // 8]


class Faulty(TorchBackend):
    name = "faulty"

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        guilty = fault_of(case.shape) == "unsupported" and os.environ["RANK"] == str(GUILTY)
        return "this rank is on strike" if guilty else None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._fault = fault_of(setup.case.shape) if setup.rank == GUILTY else ""
        self._calls = 0
        if self._fault == "raise in set-up":
            raise ValueError("no such kernel")
        if self._fault == "out of memory in set-up":
            raise torch.OutOfMemoryError("tried to allocate 1000 GiB")

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        self._calls += 1
        _strike(self._fault, self._calls)
        y_TD = super().layer(l, x_TD, ids_TK, scores_TK)
        if self._fault == "nan":
            y_TD[0, 0] = torch.nan
        if self._fault == "wrong row":
            y_TD[2] = -y_TD[2]
        return y_TD


def _strike(fault: str, calls: int) -> Any:
    if fault == "garbage":
        os.write(1, GARBAGE)
        os.write(2, GARBAGE)
    if fault in ("slow", "slow too"):
        time.sleep(0.4)
    if calls == 1:
        return
    if fault == "raise":
        raise IndexError("row 7 of 5")
    if fault == "out of memory":
        raise torch.OutOfMemoryError("tried to allocate 1000 GiB")
    if fault == "exit":
        os.write(2, GARBAGE)
        os._exit(7)
    if fault == "kill":
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(1000)
    if fault == "skip a collective":
        torch.distributed.barrier()
