"""Windows of iterations: ranks meet at a barrier before a window and never inside it."""

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.cases.case import Measure
from moebench.rank.clock import make_clock
from moebench.rank.exchange import Exchange
from moebench.rank.instruments import Instruments
from moebench.rank.step import Step
from moebench.rank.trace import Window
from moebench.steady import RECENT, settled

L2_FLUSH_BYTES = 2**28
HOLD_CYCLES = 2_000_000


def settle_garbage() -> None:
    """Take what imports made out of the collector's sight: each later collection then takes microseconds, not
    a tenth of a second."""
    gc.collect()
    gc.freeze()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect, and not again inside. Enter it before the ranks meet: a collection takes each rank its own time."""
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


@dataclass(frozen=True)
class Settled:
    """How a warm-up ended: how many iterations it took, and whether the last of them showed no drift, if asked for."""

    warmups: int
    settled: bool | None


def settle(step: Step, device: torch.device) -> Settled:
    """Warm up by count, then by time (at its power cap a GPU runs faster for its first tenths of a second), then until
    iteration times no longer drift on any rank, or `max_warmups` are done.

    Collective: all ranks do as many iterations as the slowest needs.
    """
    measure = step.case.measure
    warm_up(step, measure.warmups)
    done = measure.warmups
    if measure.warmup_seconds > 0:
        meet(device)
        began = time.monotonic()
        warm_up(step, 1)
        meet(device)
        more = math.ceil(measure.warmup_seconds / max(time.monotonic() - began, 1e-4))
        agreed = torch.tensor([more], device=device)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        warm_up(step, int(agreed))
        done += 1 + int(agreed)
    times_ms: list[float] = []
    while (room := measure.max_warmups - done - len(times_ms)) > 0:
        times_ms += _time_warm_ups(step, min(RECENT, room), device)
        if _on_all_ranks(settled(times_ms, at_most=RECENT + len(times_ms)), device):
            return Settled(done + len(times_ms), settled=True)
    return Settled(done + len(times_ms), settled=False if times_ms else None)


def _time_warm_ups(step: Step, iterations: int, device: torch.device) -> list[float]:
    """Milliseconds of each iteration, from its start to the next one's."""
    clock = make_clock(device, iterations + 1)
    for i in range(iterations):
        clock.mark(i)
        warm_up(step, 1)
    clock.mark(iterations)
    at_ms = clock.finish()
    return [after - before for before, after in pairwise(at_ms)]


def _on_all_ranks(mine: bool, device: torch.device) -> bool:
    agreed = torch.tensor([int(mine)], device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN)
    return bool(agreed)


def time_window(
    step: Step,
    iterations: int,
    device: torch.device,
    exchange: Exchange,
    instruments: Instruments | None = None,
) -> Window:
    """One window. Each iteration has an event at its start, one after forward and, in training, one after backward;
    gradients are cleared between the last event of one iteration and the first of the next. Where a GPU has nothing to
    do in between, both are the same event: each costs it a few microseconds. NVLink's counters are read when the device
    is idle: before the ranks meet, and after the last event."""
    nvlink = instruments.nvlink if instruments is not None else None
    training = step.case.training
    events = 3 if training else 2
    flush = _flush_buffer(device) if step.case.measure.l2_flush else None
    shared = device.type == "cuda" and not training and flush is None
    stride = events - shared
    clock = make_clock(device, stride * iterations + shared)
    sent, received = exchange.ledger.tx_bytes.total(), exchange.ledger.rx_bytes.total()
    wait_for(device)
    crossed = nvlink.read() if nvlink is not None else None
    with no_garbage_collection():
        meet(device)
        begun_ns = time.monotonic_ns()
        _let_host_run_ahead(device)
        for i in range(iterations):
            if flush is not None:
                flush.zero_()
            if i == 0 or not shared:
                clock.mark(stride * i)
            y_TD = step.forward()
            clock.mark(stride * i + 1)
            if training:
                step.backward(y_TD)
                clock.mark(stride * i + 2)
            del y_TD
            step.clear_gradients()
    at_ms = clock.finish()
    ended_ns = time.monotonic_ns()
    nvlink_tx, nvlink_rx = _since(crossed, nvlink.read() if nvlink is not None else None)
    starts, middles, ends = at_ms[0 : stride * iterations : stride], at_ms[1::stride], at_ms[events - 1 :: stride]
    iteration_ms = [e - s for s, e in zip(starts, ends, strict=True)]
    return Window(
        forward_ms=[m - s for s, m in zip(starts, middles, strict=True)],
        backward_ms=[e - m for m, e in zip(middles, ends, strict=True)] if training else None,
        iteration_ms=iteration_ms,
        begun_ns=begun_ns,
        ended_ns=ended_ns,
        seconds=sum(iteration_ms) / 1e3,
        tx_bytes=exchange.ledger.tx_bytes.total() - sent,
        rx_bytes=exchange.ledger.rx_bytes.total() - received,
        nvlink_tx_bytes=nvlink_tx,
        nvlink_rx_bytes=nvlink_rx,
    )


def _let_host_run_ahead(device: torch.device) -> None:
    """Hold a GPU for about a millisecond before the first event. Its queue is empty when the ranks have met, so the
    first iteration would wait for each of its launches, as later ones do only where the host is the slower one: 160 to
    280 us were seen for an iteration of 1 ms."""
    if device.type == "cuda":
        torch.cuda._sleep(HOLD_CYCLES)


def _since(before: tuple[int, int] | None, after: tuple[int, int] | None) -> tuple[int | None, int | None]:
    """Bytes sent and received between two readings; None where one failed or a counter was set back."""
    if before is None or after is None:
        return None, None
    tx, rx = after[0] - before[0], after[1] - before[1]
    return (tx, rx) if min(tx, rx) >= 0 else (None, None)


def flush_bytes(measure: Measure, device: torch.device) -> int:
    """Memory that windows hold beside the work they time."""
    return L2_FLUSH_BYTES if measure.l2_flush and device.type == "cuda" else 0


def _flush_buffer(device: torch.device) -> Tensor | None:
    """Memory to overwrite, larger than any L2 cache; none on CPU."""
    return torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device=device) if device.type == "cuda" else None


def meet(device: torch.device) -> None:
    """All ranks, and the work they queued, reach this point before any goes on."""
    wait_for(device)
    dist.barrier()


def wait_for(device: torch.device) -> None:
    """Until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
