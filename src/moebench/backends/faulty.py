"""Faults that strike a backend on purpose, whichever it is: what `moebench sweep --inject` does to a rank."""

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.backends.protocol import Backend, Setup
from moebench.backends.torch_ep import TorchBackend
from moebench.cases.case import Case
from moebench.cases.fault import Fault, Kind

GARBAGE = b"\xff\xfe\x80 not text \x00 \x1b[31m\x1b]0;title\x07\x1b[2J\r\n"
BITE_BYTES = 2**26


class FaultyBackend(TorchBackend):
    """The torch strategy under a name of its own: its faulty cases can stand beside the healthy ones of torch."""

    name = "faulty"


class InjectedFault(Exception):
    """What a backend raises that was told to."""


def with_faults(
    backend: type[Backend], faults: Sequence[Fault], device: torch.device, phase: Callable[[], str]
) -> type[Backend]:
    """The backend with this rank's faults of a case in it; `phase` says in which phase the case is."""
    if not faults:
        return backend

    def due() -> list[Fault]:
        return [fault for fault in faults if fault.phase == phase()]

    def strike() -> None:
        for fault in due():
            _strike(fault, device)

    class Faulty(backend):  # type: ignore[misc, valid-type]
        @classmethod
        def unsupported(cls, case: Case) -> str | None:
            strike()
            refusals = [f"injected: {fault}" for fault in due() if fault.kind is Kind.UNSUPPORTED]
            return refusals[0] if refusals else backend.unsupported(case)

        def __init__(self, setup: Setup) -> None:
            strike()
            super().__init__(setup)

        def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
            strike()
            y_TD: Tensor = super().layer(l, x_TD, ids_TK, scores_TK)
            for fault in due():
                y_TD = _spoil(fault, y_TD)
            return y_TD

    return Faulty


def _strike(fault: Fault, device: torch.device) -> None:
    match fault.kind:
        case Kind.RAISE:
            raise InjectedFault(str(fault))
        case Kind.OOM:
            raise torch.OutOfMemoryError(f"injected: {fault}")
        case Kind.MEMORY:
            _take_all_memory(device)
        case Kind.EXIT:
            _say(fault)
            os._exit(fault.status or 0)
        case Kind.KILL:
            _say(fault)
            os.kill(os.getpid(), signal.SIGKILL)
        case Kind.SEGFAULT:
            _say(fault)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.string_at(0)
        case Kind.STOP:
            _say(fault)
            os.kill(os.getpid(), signal.SIGSTOP)
        case Kind.HANG:
            _say(fault)
            while True:
                time.sleep(3600)
        case Kind.COLLECTIVE:
            _say(fault)
            dist.barrier()
        case Kind.SLEEP:
            time.sleep(fault.seconds or 0)
        case Kind.GARBAGE:
            _print_garbage(fault.megabytes or 0)


def _spoil(fault: Fault, y_TD: Tensor) -> Tensor:
    """y with one wrong row."""
    factors = {Kind.NAN: torch.nan, Kind.ROW: -1.0}
    if fault.kind not in factors:
        return y_TD
    factor_T1 = torch.ones_like(y_TD[:, :1])
    factor_T1[len(y_TD) // 2] = factors[fault.kind]
    return y_TD * factor_T1


def _say(fault: Fault) -> None:
    """In the log, since whatever comes next leaves no record."""
    os.write(2, f"injected: {fault}\n".encode())


def _take_all_memory(device: torch.device) -> None:
    with suppress(OSError):  # should a host run dry, its kernel is to end this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000")
    taken = []
    while True:
        taken.append(torch.ones(BITE_BYTES, dtype=torch.uint8, device=device))


def _print_garbage(megabytes: float) -> None:
    lines = GARBAGE * (2**20 // len(GARBAGE))
    for descriptor in (1, 2):
        os.write(descriptor, GARBAGE)
        for _ in range(round(megabytes)):
            os.write(descriptor, lines)
