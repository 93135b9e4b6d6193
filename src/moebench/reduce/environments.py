"""What two reports were measured on and with: differences that may move a time, and those that do not."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from moebench.reduce.schema import CaseRow, Meta

Facts = Mapping[str, Any]

NO_CAUSE = frozenset({"host", "gpu_pci_bus_id", "device_index", "reportDate"})
"""Names, places and times: they differ between equal measurements."""

RESULTS = frozenset(
    {
        "samples",
        "power_w",
        "temperature_c",
        "nvlink_tx_bytes_by_link",
        "nvlink_rx_bytes_by_link",
        "infiniband_host_tx_bytes",
        "infiniband_host_rx_bytes",
    }
)
"""Keys of an environment that are readings of the run itself."""

READING_TOLERANCE = 0.01
"""Of what is read again in every case, such as clocks: a smaller change of the median is none."""

_HOW = ("emulated", "hostKnownSplits", "fastMath", "sharedSchedule", "trafficSource", "memorySource")


@dataclass(frozen=True)
class Difference:
    """One key that differs, in so many of the cases."""

    key: str
    old: str
    new: str
    cases: int
    matters: bool


@dataclass(frozen=True)
class Environments:
    """Differences between two reports, those that matter first; and keys that one of them does not record."""

    differences: list[Difference]
    unrecorded_old: list[str]
    unrecorded_new: list[str]


def facts(meta: Meta, row: CaseRow) -> dict[str, Any]:
    """Everything that a row says of how and on what it was measured, flat: `library.version`, `capacity.slotFactor`."""
    measure = row.measure or meta
    found: dict[str, Any] = {
        "reportDate": meta.reportDate,
        "windows": measure.windows,
        "iterationsPerWindow": measure.iterationsPerWindow,
        "warmups": measure.warmups,
        "alternated": row.paired.alternated if row.paired else None,
    }
    found |= {key: getattr(row, key) for key in _HOW if key in row.model_fields_set}
    found |= row.environment or {"hardware": meta.hardware, "cuda": meta.cuda}
    if row.capacity is not None:
        found["capacity"] = row.capacity if isinstance(row.capacity, dict) else row.capacity.model_dump()
    return dict(_flat(found))


def _flat(nested: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict) and "median" not in value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def compare_environments(pairs: Sequence[tuple[Facts, Facts]]) -> Environments:
    """Differences over all cases that both reports have, given as old and new facts of each."""
    keys = dict.fromkeys(key for both in pairs for one in both for key in one if key not in RESULTS)
    differences: list[Difference] = []
    unrecorded: tuple[list[str], list[str]] = ([], [])
    for key in keys:
        known = [(old[key], new[key]) for old, new in pairs if key in old and key in new]
        if known:
            differences += _differences(key, known)
            continue
        for i in (0, 1):
            if not any(key in both[i] for both in pairs):
                unrecorded[i].append(key)
    return Environments(sorted(differences, key=lambda one: (not one.matters, -one.cases)), *unrecorded)


def _differences(key: str, known: Sequence[tuple[Any, Any]]) -> list[Difference]:
    matters = key not in NO_CAUSE
    readings = [(_reading(old), _reading(new)) for old, new in known]
    numbers = [(old, new) for old, new in readings if old is not None and new is not None]
    if len(numbers) == len(known):
        moved = [(old, new) for old, new in numbers if abs(new - old) > READING_TOLERANCE * abs(old)]
        old, new = (f"{median(side):.4g}" for side in zip(*moved, strict=True)) if moved else ("", "")
        return [Difference(key, old, new, len(moved), matters)] if moved else []
    counted = Counter((_text(old), _text(new)) for old, new in known if old != new)
    return [Difference(key, old, new, cases, matters) for (old, new), cases in counted.items()]


def _reading(value: Any) -> float | None:
    """The median of what was read several times in a case."""
    middle = value.get("median") if isinstance(value, dict) else None
    return float(middle) if isinstance(middle, (int, float)) else None


def _text(value: Any) -> str:
    return "none" if value is None or value == "" else str(value)
