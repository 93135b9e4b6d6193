"""Exact null distributions of the two rank statistics behind every interval, by counting."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_EXACT_UP_TO_PAIRS = 10_000


@lru_cache(maxsize=256)
def signed_rank_cdf(n: int) -> NDArray[np.float64]:
    """P(T <= t) for t = 0 ... n(n+1)/2, T the signed-rank statistic of n differences that are symmetric about 0.

    Each of the ranks 1 ... n is in the sum with probability 1/2 (Wilcoxon 1945; Lehmann 1975, chapter 3).
    """
    probability = np.zeros(n * (n + 1) // 2 + 1)
    probability[0] = 1.0
    for rank in range(1, n + 1):
        probability /= 2
        probability[rank:] += probability[:-rank].copy()
    return _read_only(np.cumsum(probability))


@lru_cache(maxsize=256)
def mann_whitney_cdf(m: int, n: int) -> NDArray[np.float64]:
    """P(U <= u) for u = 0 ... m*n, U the number of the m*n pairs in which the second sample's value is smaller, both
    samples from one distribution.

    The counts are the coefficients of the Gaussian binomial, the product over i = 1 ... n of
    (1 - x^(m+i)) / (1 - x^i) (Mann & Whitney 1947). Above 10,000 pairs it is the normal approximation with
    continuity correction.
    """
    if m * n > _EXACT_UP_TO_PAIRS:
        normal = NormalDist(m * n / 2, math.sqrt(m * n * (m + n + 1) / 12))
        return _read_only(np.array([normal.cdf(u + 0.5) for u in range(m * n + 1)]))
    counts = [1] + [0] * (m * n)
    for i in range(1, n + 1):
        for u in range(m * n, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, m * n + 1):
            counts[u] += counts[u - i]
    total = math.comb(m + n, n)
    return _read_only(np.cumsum([count / total for count in counts]))


def _read_only(values: NDArray[np.float64]) -> NDArray[np.float64]:
    values.flags.writeable = False
    return values
