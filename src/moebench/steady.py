"""Whether a series of times still moves in one direction. Ranks ask it while they warm up, the reducer afterwards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

RECENT = 10
"""A warm-up has settled when this many of its last times show no trend."""

TREND_LEVEL = 0.02
"""A series without trend is said to drift in at most this share of cases."""

MATTERS = 0.01
"""What moves a time by less than 1 % is not worth a flag."""

_EXACT_UP_TO = 30


@dataclass(frozen=True)
class Trend:
    """Of a series: the exact two-sided p-value of "no trend", and how much it rises from first to last, in its unit."""

    p_value: float
    rise: float


def trend(series: Sequence[float]) -> Trend:
    """Mann-Kendall test and Theil-Sen slope of a series of at least two values.

    S is the number of pairs that rise minus the number that fall (Mann 1945); its null distribution is exact up to 30
    values and normal beyond (Kendall 1938). Equal pairs count for neither side, which makes p too large, never too
    small. The rise is the median slope of all pairs (Theil 1950, Sen 1968) times the length.
    """
    values = np.asarray(series, dtype=np.float64)
    i, j = np.triu_indices(len(values), k=1)
    differences = values[j] - values[i]
    s = int(np.sign(differences).sum())
    slope = float(np.median(differences / (j - i)))
    return Trend(_kendall_p_value(len(values), abs(s)), slope * (len(values) - 1))


def drift(series: Sequence[float]) -> Trend | None:
    """The trend of a series that drifts: one beyond chance and by more than 1 % of its median. None if it does not,
    and for fewer than 5 values, where even a steady rise can be chance."""
    if len(series) < 2:
        return None
    found = trend(series)
    moves = found.p_value <= TREND_LEVEL and abs(found.rise) > MATTERS * abs(np.median(series))
    return found if moves else None


def settled(times: Sequence[float], at_most: int) -> bool:
    """Whether a warm-up may end: its last ten times show no drift, or there are `at_most` of them, so that it always
    ends. Noise without direction, such as 1, 100, 1, 100, is settled: more warm-up would not make it quieter."""
    if len(times) >= at_most:
        return True
    return len(times) >= RECENT and drift(times[-RECENT:]) is None


@lru_cache(maxsize=4096)
def _kendall_p_value(n: int, s: int) -> float:
    """P(|S| >= s) over all orders of n distinct values."""
    if n > _EXACT_UP_TO:
        deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return min(1.0, 2 * NormalDist().cdf(-(s - 1) / deviation))
    pairs = n * (n - 1) // 2
    orders = _orders_by_falling_pairs(n)
    return min(1.0, 2 * sum(orders[: (pairs - s + 1) // 2 + 1]) / math.factorial(n))


@lru_cache(maxsize=64)
def _orders_by_falling_pairs(n: int) -> tuple[int, ...]:
    """How many orders of n distinct values have 0, 1, ... falling pairs: a value put into an order of i smaller ones
    makes 0 to i falling pairs more."""
    orders = [1]
    for i in range(1, n):
        longer = [0] * (len(orders) + i)
        for more in range(i + 1):
            for falling, count in enumerate(orders):
                longer[falling + more] += count
        orders = longer
    return tuple(orders)
