"""Marks in time: perf_counter on CPU, CUDA events on GPUs. Marking never synchronises the device with the host."""

import time
from typing import Protocol

import torch


class Clock(Protocol):
    def mark(self, index: int) -> None: ...

    def finish(self) -> list[float]:
        """Milliseconds of every mark since the first one, in order. May synchronise: called outside windows."""
        ...


class HostClock:
    def __init__(self, marks: int) -> None:
        self._ns = [0] * marks

    def mark(self, index: int) -> None:
        self._ns[index] = time.perf_counter_ns()

    def finish(self) -> list[float]:
        return [(ns - self._ns[0]) / 1e6 for ns in self._ns]


class CudaClock:
    """Events are created before the window, so that marking only records."""

    def __init__(self, marks: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(marks)]

    def mark(self, index: int) -> None:
        self._events[index].record()

    def finish(self) -> list[float]:
        self._events[-1].synchronize()
        return [self._events[0].elapsed_time(event) for event in self._events]


def make_clock(device: torch.device, marks: int) -> Clock:
    return CudaClock(marks) if device.type == "cuda" else HostClock(marks)
