"""Waiting until a time is up, on the host or on the device itself. Neither synchronises one with the other."""

import time
from typing import Protocol

import torch

AWAKE_NS = 10_000_000
"""The last stretch before a time is up is waited for without sleep: a sleeper wakes up late, and with cold caches, so
that what follows takes some 20 us longer."""

MOST_NOTED = 2**16
"""Waits on a device whose lengths are known afterwards; later ones take the places of the first."""


class Timer(Protocol):
    def start(self) -> None:
        """The next wait counts from now."""
        ...

    def wait(self, ms: float) -> None:
        """Until so many ms have passed since the start or the end of the last wait; not at all if they have."""
        ...

    def took_ms(self) -> list[float]:
        """How long each wait really was, counted as above. Synchronises."""
        ...


class HostTimer:
    """Spins on `perf_counter_ns`, after a sleep where there is time for one: a process that only spun would have used
    up its share when its time is up, and lose its core for milliseconds where others want it."""

    def __init__(self) -> None:
        self._from_ns = 0
        self._took_ns: list[int] = []

    def start(self) -> None:
        self._from_ns = time.perf_counter_ns()

    def wait(self, ms: float) -> None:
        end_ns = self._from_ns + round(ms * 1e6)
        left_ns = end_ns - time.perf_counter_ns()
        if left_ns > AWAKE_NS:
            time.sleep((left_ns - AWAKE_NS) / 1e9)
        while (now_ns := time.perf_counter_ns()) < end_ns:
            pass
        self._took_ns.append(now_ns - self._from_ns)
        self._from_ns = now_ns

    def took_ms(self) -> list[float]:
        return [ns / 1e6 for ns in self._took_ns]


class DeviceTimer:
    """Kernels that read the GPU's own clock in ns, %globaltimer: it counts time, not cycles, at any clock rate."""

    def __init__(self, device: torch.device) -> None:
        from moebench.backends import timer_kernels

        self._kernels = timer_kernels
        self._from_ns = torch.zeros(1, dtype=torch.int64, device=device)
        self._took_ns = torch.zeros(MOST_NOTED, dtype=torch.int64, device=device)
        self._waits = 0

    def start(self) -> None:
        self._kernels.stamp(self._from_ns)

    def wait(self, ms: float) -> None:
        self._kernels.wait(self._from_ns, round(ms * 1e6), self._took_ns, self._waits % MOST_NOTED)
        self._waits += 1

    def took_ms(self) -> list[float]:
        return [ns / 1e6 for ns in self._took_ns[: self._waits].tolist()]


def make_timer(device: torch.device) -> Timer:
    return DeviceTimer(device) if device.type == "cuda" else HostTimer()
