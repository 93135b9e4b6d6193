"""Clocks, power, temperature and throttle reasons of a rank's GPU, sampled by a process beside the rank."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from moebench.rank.counters_nvml import GpuAddress
from moebench.rank.sampler_process import Sample
from moebench.rank.trace import Window

ANSWER_S = 5.0


def command(address: GpuAddress) -> list[str]:
    program = [sys.executable, "-m", "moebench.rank.sampler_process"]
    return [*program, address.uuid or "", address.pci_bus_id, str(os.getpid())]


class Sampler:
    """One process for the life of a rank; it rests between cases. A sampler that fails costs figures, never a case."""

    def __init__(self, program: Sequence[str]) -> None:
        self._process: subprocess.Popen[bytes] | None
        try:
            self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError:
            self._process = None

    def begin(self) -> None:
        self._say(b"b")

    def end(self) -> list[Sample] | None:
        """Samples since `begin`, the last one taken now; None if the sampler is gone or does not answer."""
        if not self._say(b"e"):
            return None
        line = self._line()
        if line is None:
            self.close()
            return None
        try:
            return [Sample(**sample) for sample in json.loads(line)]
        except (TypeError, ValueError):
            self.close()
            return None

    def close(self) -> None:
        """End the process. Later calls do nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _say(self, word: bytes) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(word)
            self._process.stdin.flush()
        except OSError:
            self.close()
            return False
        return True

    def _line(self) -> bytes | None:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, text, deadline = self._process.stdout.fileno(), b"", time.monotonic() + ANSWER_S
        while not text.endswith(b"\n"):
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(descriptor, 65536)
            if not part:
                return None
            text += part
        return text


def summary(samples: Sequence[Sample], windows: Sequence[Window]) -> dict[str, Any]:
    """What the GPU was like inside the windows, for a trace's environment.

    Keys: throttle_reasons (NVML clock event bits, OR of all), sm_clock_mhz, memory_clock_mhz, power_w and temperature_c
    (min, median, max), and samples, their number. If all windows fell between two samples, the last one, taken right
    after them, stands for them, and `samples` is 0.
    """
    inside = [sample for sample in samples if any(_is_in(sample, window) for window in windows)]
    used = inside or list(samples[-1:])
    found: dict[str, Any] = {"samples": len(inside)}
    reasons = [sample.throttle_reasons for sample in used if sample.throttle_reasons is not None]
    if reasons:
        found["throttle_reasons"] = 0
        for bits in reasons:
            found["throttle_reasons"] |= bits
    spreads: dict[str, Callable[[Sample], float | None]] = {
        "sm_clock_mhz": lambda sample: sample.sm_mhz,
        "memory_clock_mhz": lambda sample: sample.memory_mhz,
        "power_w": lambda sample: sample.power_w,
        "temperature_c": lambda sample: sample.temperature_c,
    }
    for key, value_of in spreads.items():
        values = [value for sample in used if (value := value_of(sample)) is not None]
        if values:
            found[key] = {"min": min(values), "median": median(values), "max": max(values)}
    return found


def _is_in(sample: Sample, window: Window) -> bool:
    return (
        window.begun_ns is not None
        and window.ended_ns is not None
        and window.begun_ns <= sample.at_ns <= window.ended_ns
    )
