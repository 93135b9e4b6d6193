"""What may be claimed of a ratio: verdicts, the floor that an A/A pair sets, and Holm's correction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from moebench.reduce.ratio import LEVEL, Interval


class Verdict(StrEnum):
    """Of B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    """Within the stated margin."""
    UNDECIDED = "undecided"
    TOO_FEW_SAMPLES = "too few samples"


@dataclass(frozen=True)
class Floor:
    """What an A/A pair, one case against itself in the same job, says of this machine today."""

    aa: Interval
    effect: float
    """About the smallest effect that can be shown, as a fraction of the time: 0.012 is 1.2 %."""

    @property
    def biased(self) -> bool:
        """Whether a difference was seen where there is none."""
        return self.aa.excludes_1

    def in_words(self) -> str:
        aa = f"A/A {self.aa.ratio:.4g}x [{self.aa.low:.4g}, {self.aa.high:.4g}]"
        if self.biased:
            return (
                f"{aa} excludes 1, so these measurements are biased: no ratio within {self.effect:.2%} of 1 counts "
                "as a difference, and nothing is called the same"
            )
        return f"{aa}: the smallest effect that can be shown here today is about {self.effect:.2%}"


def aa_floor(aa: Interval) -> Floor | None:
    """The floor from the interval of an A/A pair that has as many blocks as the pairs it is for.

    None from fewer than 6 blocks. It is half the width of the interval in logs: what a pair that is as noisy needs to
    be told from 1. A true effect of that size is found in about half of all runs, one of 1.43 times that size in about
    80 % (1 + z(0.8) / z(0.975)). If the interval excludes 1, which happens by chance in 1 of 20 jobs, it is the end of
    the interval farther from 1: the bias, and what is not known of it.
    """
    if not aa.enough:
        return None
    low, high = math.log(aa.low), math.log(aa.high)
    return Floor(aa, math.expm1(max(-low, high) if aa.excludes_1 else (high - low) / 2))


def verdict(
    interval: Interval, floor: Floor | None = None, same_within: float = 0.01, p_value: float | None = None
) -> Verdict:
    """The claim that an interval allows.

    - too few samples: under 6 blocks, or unpaired under 4 windows of either case;
    - same: the whole interval within 1 / (1 + same_within) ... 1 + same_within, and measurements not biased. It comes
      first: what lies inside the margin is no win, however surely it differs from 1;
    - faster, slower: the interval excludes 1, p is at most 0.05, and where measurements are biased the ratio is
      farther from 1 than the floor. Where they are not, the interval itself says what noise allows;
    - undecided: all else.

    `p_value` is the one adjusted by `holm`, where a table makes many claims.
    """
    if not interval.enough:
        return Verdict.TOO_FEW_SAMPLES
    biased_by = floor.effect if floor is not None and floor.biased else 0.0
    if not biased_by and max(interval.high, 1 / interval.low) <= 1 + same_within:
        return Verdict.SAME
    p = interval.p_value if p_value is None else p_value
    beyond_bias = abs(math.log(interval.ratio)) > math.log1p(biased_by)
    if not (interval.excludes_1 and p <= 1 - LEVEL and beyond_bias):
        return Verdict.UNDECIDED
    return Verdict.FASTER if interval.ratio < 1 else Verdict.SLOWER


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for making all these claims at once, in the order given (Holm 1979).

    The i-th smallest of m (i from 0) is multiplied by m - i; none is smaller than one before it, none above 1. With
    a probability of at least 95 % none of the claims at 0.05 is then a false one, however they depend on each other.
    Leave out intervals of too few samples: they claim nothing. Intervals and "same" keep a level of their own.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for i, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def least_blocks(claims: int) -> int:
    """The fewest blocks with which Holm can allow any of so many claims: claims * 2 / 2^blocks <= 0.05."""
    return math.ceil(math.log2(2 * claims / (1 - LEVEL)))
