"""Windows of iterations: ranks meet at a barrier before a window and never inside it."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.rank.clock import make_clock
from moebench.rank.exchange import Exchange
from moebench.rank.step import Step
from moebench.rank.trace import Window

L2_FLUSH_BYTES = 2**28


def settle_garbage() -> None:
    """Take what imports made out of the collector's sight: each later collection then takes microseconds, not
    a tenth of a second."""
    gc.collect()
    gc.freeze()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def warm_up(step: Step, iterations: int) -> None:
    for _ in range(iterations):
        step.backward(step.forward())
        step.clear_gradients()


def time_window(step: Step, iterations: int, device: torch.device, exchange: Exchange) -> Window:
    """One window. Each iteration has three events: start, after forward, after backward; gradients are cleared
    between the last event of one iteration and the first of the next."""
    clock = make_clock(device, 3 * iterations)
    flush = _flush_buffer(device) if step.case.measure.l2_flush else None
    sent, received = exchange.ledger.tx_bytes.total(), exchange.ledger.rx_bytes.total()
    meet(device)
    with no_garbage_collection():
        begun_ns = time.monotonic_ns()
        for i in range(iterations):
            if flush is not None:
                flush.zero_()
            clock.mark(3 * i)
            y_TD = step.forward()
            clock.mark(3 * i + 1)
            step.backward(y_TD)
            clock.mark(3 * i + 2)
            del y_TD
            step.clear_gradients()
    at_ms = clock.finish()
    starts, middles, ends = at_ms[0::3], at_ms[1::3], at_ms[2::3]
    iteration_ms = [e - s for s, e in zip(starts, ends, strict=True)]
    return Window(
        forward_ms=[m - s for s, m in zip(starts, middles, strict=True)],
        backward_ms=[e - m for m, e in zip(middles, ends, strict=True)] if step.case.training else None,
        iteration_ms=iteration_ms,
        begun_ns=begun_ns,
        seconds=sum(iteration_ms) / 1e3,
        tx_bytes=exchange.ledger.tx_bytes.total() - sent,
        rx_bytes=exchange.ledger.rx_bytes.total() - received,
    )


def _flush_buffer(device: torch.device) -> Tensor | None:
    """Memory to overwrite, larger than any L2 cache; none on CPU."""
    return torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device=device) if device.type == "cuda" else None


def meet(device: torch.device) -> None:
    """All ranks, and the work they queued, reach this point before any goes on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()
