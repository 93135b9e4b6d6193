"""The sampler's own process: reads a GPU's sensors a few times a second, so that no rank's interpreter does.

Started as `python -m moebench.rank.sampler_process UUID PCI_BUS_ID PARENT_PID`; no torch. It obeys single bytes on
standard input: `b` begins to sample, `e` ends it and answers with one line of JSON, a list of samples. It ends when
its input is closed or its parent dies.
"""

import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from moebench.rank.counters_nvml import GpuAddress, NvmlRefused, ask_if_known, find_gpu, load_nvml
from moebench.rank.lifeline import die_with_parent

PERIOD_S = 0.25
FIRST_S = 0.02
"""The first sample comes soon, for windows shorter than a period."""
MOST_SAMPLES = 20_000
"""Then every second one is dropped: memory stays small over hours."""


@dataclass(frozen=True)
class Sample:
    """Sensors of a GPU at one time of the host's monotonic clock. None: the GPU does not say."""

    at_ns: int
    throttle_reasons: int | None
    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None


def take(nvml: Any, handle: Any) -> Sample:
    """One sample. Clock event reasons were named throttle reasons before driver 535."""
    reasons = ask_if_known(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = ask_if_known(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    milliwatts = ask_if_known(nvml, "nvmlDeviceGetPowerUsage", handle)
    return Sample(
        at_ns=time.monotonic_ns(),
        throttle_reasons=reasons,
        sm_mhz=ask_if_known(nvml, "nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
        memory_mhz=ask_if_known(nvml, "nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_MEM", 2)),
        power_w=None if milliwatts is None else milliwatts / 1e3,
        temperature_c=ask_if_known(nvml, "nvmlDeviceGetTemperature", handle, getattr(nvml, "NVML_TEMPERATURE_GPU", 0)),
    )


def serve(nvml: Any, handle: Any, commands: int, answers: Any) -> None:
    """Obey until the file descriptor `commands` is closed by its writer; answer on the text stream `answers`."""
    samples: list[Sample] = []
    next_s: float | None = None
    while True:
        wait_s = None if next_s is None else max(0.0, next_s - time.monotonic())
        if not select.select([commands], [], [], wait_s)[0]:
            samples.append(take(nvml, handle))
            if len(samples) == MOST_SAMPLES:
                samples = samples[::2]
            next_s = time.monotonic() + PERIOD_S
            continue
        command = os.read(commands, 1)
        if command == b"b":
            samples, next_s = [], time.monotonic() + FIRST_S
        elif command == b"e":
            samples.append(take(nvml, handle))
            answers.write(json.dumps([asdict(sample) for sample in samples]) + "\n")
            answers.flush()
            samples, next_s = [], None
        elif command == b"":
            return


def main() -> None:
    uuid, pci_bus_id, parent_pid = sys.argv[1:4]
    die_with_parent(int(parent_pid), signal.SIGKILL)
    nvml = load_nvml()
    serve(nvml, find_gpu(nvml, GpuAddress(uuid or None, pci_bus_id)), sys.stdin.fileno(), sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except NvmlRefused as refused:
        sys.exit(f"moebench sampler: {refused}")
