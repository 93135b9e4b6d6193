"""Peak memory of a case: the allocator's on a GPU, resident memory of the process on a CPU."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Peak:
    source: str | None
    """`allocator`, `rss`, or None where the machine refuses to say."""
    allocated_bytes: int | None
    reserved_bytes: int | None

    def without(self, held_bytes: int) -> "Peak":
        """The peak less what the measurement itself held all the while."""
        allocated, reserved = (
            None if size is None else size - held_bytes for size in (self.allocated_bytes, self.reserved_bytes)
        )
        return Peak(self.source, allocated, reserved)


class PeakMemory:
    """Peak between `reset` and `read`, above what the process held when the object was made.

    `reset` comes after the numerics check, so that the reference's memory is not charged to the backend.
    On CPU writing 5 to /proc/self/clear_refs resets the high-water mark VmHWM of the resident set.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start_bytes = 0
        self._works = True
        if device.type == "cuda":
            torch.cuda.empty_cache()
        else:
            _give_back_freed_memory()
            self._start_bytes = _status_bytes("VmRSS") or 0

    def reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        _give_back_freed_memory()
        try:
            _CLEAR_REFS.write_text("5")
        except OSError:
            self._works = False

    def read(self) -> Peak:
        if self._device.type == "cuda":
            return Peak(
                "allocator",
                torch.cuda.max_memory_allocated(self._device),
                torch.cuda.max_memory_reserved(self._device),
            )
        peak = _status_bytes("VmHWM") if self._works else None
        if peak is None:
            return Peak(None, None, None)
        return Peak("rss", max(0, peak - self._start_bytes), None)


def _give_back_freed_memory() -> None:
    """What earlier cases freed must not lie in the heap for this one to use unseen (glibc keeps it)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(key: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None
