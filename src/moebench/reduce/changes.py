"""What else changed in a case beside its time: memory and bytes sent."""

from collections.abc import Callable
from dataclasses import dataclass

from moebench.reduce.schema import CaseRow


@dataclass(frozen=True)
class MetricChange:
    id: str
    metric: str
    """A key of the report, or what it was derived from."""
    old: float
    new: float
    tolerance: float
    """A fraction of the old value: smaller changes are none."""

    @property
    def change(self) -> float | None:
        """As a fraction of the old value; None where that is 0."""
        return self.new / self.old - 1 if self.old else None


@dataclass(frozen=True)
class _Metric:
    key: str
    value: Callable[[CaseRow], float | None]
    tolerance: Callable[[CaseRow], float]


def _sent_bytes(row: CaseRow) -> float | None:
    return None if row.txBytesByKind is None else sum(row.txBytesByKind.values())


def _memory_tolerance(row: CaseRow) -> float:
    """Resident memory depends on what the process did before; an allocator's count repeats."""
    return 0.1 if row.memorySource == "rss" else 0.01


_METRICS = (
    _Metric("peakAllocatedGiB", lambda row: row.peakAllocatedGiB, _memory_tolerance),
    _Metric("peakReservedBytes", lambda row: row.peakReservedBytes, _memory_tolerance),
    _Metric("txBytesByKind, all kinds", _sent_bytes, lambda row: 1e-3),
    _Metric("replayTXBytes", lambda row: row.replayTXBytes, lambda row: 1e-3),
)


def metric_changes(old: CaseRow, new: CaseRow) -> list[MetricChange]:
    """Changes beyond their tolerance. Memory is compared only where both were counted in the same way."""
    found = []
    for metric in _METRICS:
        a, b, tolerance = metric.value(old), metric.value(new), metric.tolerance(old)
        if a is None or b is None or (metric.key.startswith("peak") and old.memorySource != new.memorySource):
            continue
        if abs(b - a) > tolerance * abs(a):
            found.append(MetricChange(old.id, metric.key, a, b, tolerance))
    return found
