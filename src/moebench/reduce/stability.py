"""Whether a mean of window times stands for something: windows that drift, fall into two groups, or lie apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from moebench.reduce.ratio import log_times
from moebench.steady import MATTERS, drift

# fmt: off
OUTLIER_GAP = (
    0.994, 0.920, 0.824, 0.743, 0.681, 0.634, 0.605, 0.573, 0.546, 0.525, 0.508, 0.491, 0.477, 0.464,
    0.454, 0.444, 0.435, 0.428, 0.420, 0.414, 0.406, 0.400, 0.396, 0.391, 0.386, 0.381, 0.377, 0.374,
)
"""For 3 ... 30 windows: what the widest gap that cuts off fewer than a quarter of the windows, as a share of the whole
range, exceeds in 1 % of normal series. Where that quarter is one window it is Dixon's r10 (Dixon 1950)."""

GROUP_GAP = (
    0.864, 0.776, 0.693, 0.628, 0.572, 0.482, 0.447, 0.419, 0.394, 0.344, 0.327, 0.312, 0.298,
    0.267, 0.257, 0.247, 0.239, 0.218, 0.212, 0.205, 0.199, 0.184, 0.179, 0.175, 0.171, 0.159, 0.156,
)
"""The same for 4 ... 30 windows, of gaps with at least two windows and a quarter of them on either side."""
# fmt: on


class Instability(StrEnum):
    DRIFTING = "drifting"
    BIMODAL = "bimodal"
    OUTLIERS = "outliers"


@dataclass(frozen=True)
class Finding:
    kind: Instability
    message: str
    """What was found, to follow the kind."""


def instabilities(window_ms: Sequence[float]) -> list[Finding]:
    """What is wrong with a series of window times, in the order they ran; empty where nothing was found.

    Drift is a Mann-Kendall test, from 5 windows on. The others look for a gap between neighbours in size that is wide
    against the whole range, from 3 (outliers) and 4 windows on (bimodal): on logs, so that log-normal noise of any size
    counts as normal. What is below 1 % is ignored. Of series that are only noisy 2 % are said to drift, 1 % to have
    outliers and 1 % to be bimodal; noise with a long tail does have outliers.

    Raises UsageError for a time that is not finite and above 0.
    """
    found = [_outliers(window_ms), _bimodal(window_ms), _drifting(window_ms)]
    return [finding for finding in found if finding is not None]


def _outliers(window_ms: Sequence[float]) -> Finding | None:
    n = len(window_ms)
    parts = _parted(window_ms, [lower for lower in range(1, n) if not _are_two_groups(lower, n)], OUTLIER_GAP)
    if parts is None:
        return None
    few, most = sorted(parts, key=len)
    return Finding(Instability.OUTLIERS, f"{_extent(few)} against {_extent(most)}")


def _bimodal(window_ms: Sequence[float]) -> Finding | None:
    n = len(window_ms)
    parts = _parted(window_ms, [lower for lower in range(1, n) if _are_two_groups(lower, n)], GROUP_GAP)
    if parts is None:
        return None
    return Finding(Instability.BIMODAL, f"{_extent(parts[0])} and {_extent(parts[1])}")


def _drifting(window_ms: Sequence[float]) -> Finding | None:
    found = drift(window_ms)
    if found is None:
        return None
    change = found.rise / float(np.median(window_ms))
    return Finding(Instability.DRIFTING, f"{change:+.1%} from first to last window (p = {found.p_value:.2g})")


def _are_two_groups(lower: int, n: int) -> bool:
    """Rather than outliers, of n windows parted into the `lower` shortest and the rest."""
    return min(lower, n - lower) >= max(2, n / 4)


def _parted(
    window_ms: Sequence[float], at: Sequence[int], limits: Sequence[float]
) -> tuple[list[float], list[float]] | None:
    """The windows below and above the widest gap after the first `at` of them in size, if it exceeds its limit.

    `limits` ends with that of 30 windows, which is on the safe side for more.
    """
    logs = np.sort(log_times(window_ms))
    if not at or len(logs) < 3:
        return None
    gap, lower = max((logs[lower] - logs[lower - 1], lower) for lower in at)
    limit = limits[min(len(logs) - 30, 0) - 1]
    if gap <= limit * (logs[-1] - logs[0]) or math.expm1(gap) <= MATTERS:
        return None
    ordered = sorted(window_ms)
    return ordered[:lower], ordered[lower:]


def _extent(ordered_ms: Sequence[float]) -> str:
    count, low, high = len(ordered_ms), f"{ordered_ms[0]:.4g}", f"{ordered_ms[-1]:.4g}"
    windows = "1 window" if count == 1 else f"{count} windows"
    return f"{windows} of {low} ms" if low == high else f"{windows} of {low} to {high} ms"
