"""Ratio of two cases' times with an exact confidence interval.

Estimate and interval are Hodges and Lehmann's: no distribution of the noise is assumed, and one wild window moves
them little. Exact levels come in steps. An interval has the smallest one of at least 95 %, or the largest there is
where samples are too few for 95 %, and states it: 0.961 for 8 blocks, 0.951 for 24. Where samples are enough for a
claim, it excludes 1 exactly when the exact two-sided p-value is at most 5 %. Ties and zero differences count against
a difference: they can only make the interval wider and the p-value larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moebench.errors import UsageError
from moebench.reduce.exact import mann_whitney_cdf, signed_rank_cdf

LEVEL = 0.95
"""Of every interval, where the samples allow it; 1 - LEVEL is the level of every verdict."""

MIN_BLOCKS = 6
"""With 5 blocks even the clearest difference comes about by chance in 2 of 2^5 = 6.3 % of cases."""

MIN_WINDOWS = 4
"""Of each case, unpaired. With 3 against 3 the clearest difference comes about by chance in 2 of 20 cases."""


@dataclass(frozen=True)
class Interval:
    """Ratio of times B / A; below 1, B takes less time than A."""

    ratio: float
    low: float
    high: float
    """Both ends belong to the interval."""
    level: float
    """Probability with which such an interval covers the true ratio, e.g. 0.961 for 8 blocks."""
    p_value: float
    """Exact, two-sided, that the ratio is 1."""
    paired: bool
    n: int
    """Blocks if paired; else windows of the case that has fewer."""

    @property
    def excludes_1(self) -> bool:
        return self.low > 1 or self.high < 1

    @property
    def enough(self) -> bool:
        """Whether a claim may rest on so few samples."""
        return self.n >= (MIN_BLOCKS if self.paired else MIN_WINDOWS)


def paired_ratio(a_ms: Sequence[float], b_ms: Sequence[float]) -> Interval:
    """Ratio B / A from blocks, each the mean of its two A windows and the mean of its two B windows.

    Windows in the order ABBA (or BAAB) cancel whatever changes steadily during a block. Of the n differences of logs
    d, the estimate is the median of the n(n+1)/2 Walsh averages (d_i + d_j) / 2 (Hodges & Lehmann 1963), and the
    interval leaves out as many of the smallest and of the largest as the signed-rank distribution allows (Tukey 1949;
    Lehmann 1975, chapter 4). The blocks are taken as independent, and d as symmetric about its centre, which holds
    when both cases scatter alike.

    Raises UsageError for a time that is not finite and above 0, ValueError for lists of unequal length.
    """
    if len(a_ms) != len(b_ms):
        raise ValueError(f"{len(a_ms)} blocks of A, {len(b_ms)} of B")
    d = log_times(b_ms) - log_times(a_ms)
    walsh = np.add.outer(d, d)[np.tri(len(d), dtype=np.bool_)] / 2
    return _interval(walsh, signed_rank_cdf(len(d)), paired=True, n=len(d))


def unpaired_ratio(a_ms: Sequence[float], b_ms: Sequence[float]) -> Interval:
    """Ratio B / A from window times of two runs.

    The estimate is the median of all differences log b_j - log a_i (Hodges & Lehmann 1963), the interval is Moses',
    from the Mann-Whitney distribution (Lehmann 1975, chapter 2). It tells whether these two runs differ. It cannot tell
    the cases apart from what else changed between the runs: clocks, heat, neighbours.

    Raises UsageError for a time that is not finite and above 0.
    """
    differences = np.subtract.outer(log_times(b_ms), log_times(a_ms)).ravel()
    return _interval(differences, mann_whitney_cdf(len(a_ms), len(b_ms)), paired=False, n=min(len(a_ms), len(b_ms)))


def log_times(times_ms: Sequence[float]) -> NDArray[np.float64]:
    """Natural logarithms. Raises UsageError where there is no time, or one that no clock could have measured."""
    times = np.asarray(times_ms, dtype=np.float64)
    bad = times[~(np.isfinite(times) & (times > 0))]
    if bad.size or not times.size:
        found = f"{bad[0]:g}" if bad.size else "none at all"
        raise UsageError(f"comparing needs times that are finite and above 0, found {found}.")
    return np.log(times)


def _interval(logs: NDArray[np.float64], null_cdf: NDArray[np.float64], paired: bool, n: int) -> Interval:
    """Invert the test whose statistic is the number of `logs` above 0."""
    logs = np.sort(logs)
    left_out = max(0, int(np.searchsorted(null_cdf, (1 - LEVEL) / 2, side="right")) - 1)
    against = min(np.count_nonzero(logs <= 0), np.count_nonzero(logs >= 0))
    centre = (logs[len(logs) // 2] + logs[(len(logs) - 1) // 2]) / 2
    low, ratio, high = np.exp([logs[left_out], centre, logs[-1 - left_out]])
    return Interval(
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        level=float(1 - 2 * null_cdf[left_out]),
        p_value=min(1.0, float(2 * null_cdf[against])),
        paired=paired,
        n=n,
    )
