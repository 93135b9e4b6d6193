"""Whether a case became slower beyond a limit, judged for all cases of a table at once.

A claim needs samples. The ratio of a case is new time over old time, its interval that of `unpaired_ratio`. With L the
limit, 1 + the allowed regression, a case is

- a regression if the whole interval lies above L, and its p-value against "the ratio is L" is at most 0.05 when
  adjusted for all claims of the table;
- no regression if the whole interval lies at or below L. This needs no adjustment: a report is passed only if every
  case is, so that a given regression is overlooked in at most 1 of 40 comparisons;
- otherwise undecided.

Claims of the table are the cases whose ratio lies above L. Two-sided p-values make up for counting only those: where
a ratio does not exceed L, half of them or more lie below it (Zhao, Small & Su 2019). They are adjusted by Hochberg's
step-up form of Holm's method (Hochberg 1988), which takes the noise of the cases' windows as independent, or as
moving them together. Holm's own over all cases could never call anything a regression at 5 windows, however slow: 2 /
252, the smallest p, times 30 cases is 24 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from moebench.reduce.ratio import LEVEL, MIN_WINDOWS, Interval, unpaired_ratio
from moebench.reduce.schema import CaseRow
from moebench.reduce.stability import instabilities

ROUNDING = 1e-9
"""A ratio that exceeds the limit by less is at the limit: logs and means round."""


class Finding(StrEnum):
    REGRESSION = "regression"
    LOST = "lost"
    """Accepted in the old report; failed or wrong in the new one."""
    UNDECIDED = "undecided"
    FINE = "no regression"


@dataclass(frozen=True)
class CaseComparison:
    """A case that both reports accepted, and that did the same work in both."""

    id: str
    old: CaseRow
    new: CaseRow
    finding: Finding
    why: str = ""
    """Why there is no claim, or what it rests on where that is no interval."""
    interval: Interval | None = None
    p_value: float | None = None
    """Against "the ratio is the limit", adjusted; none where that is no claim of the table."""
    unstable: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """New time over old: the interval's estimate, else the ratio of the means."""
        return self.interval.ratio if self.interval else self.new.iterationMS / self.old.iterationMS


def decide(
    cases: Sequence[tuple[CaseRow, CaseRow]], max_regression: float, *, by_ratio: bool = False
) -> tuple[list[CaseComparison], int]:
    """The findings of cases, given as old and new row, and the number of claims that p-values were adjusted for.

    `by_ratio`: where samples are missing or too few, the ratio of the two means decides.
    """
    limit = (1 + max_regression) * (1 + ROUNDING)
    measured = [_measured(old, new) for old, new in cases]
    p_values = {}
    for one in measured:
        if one.interval is not None and one.interval.ratio > limit:
            allowed_ms = [limit * ms for ms in one.old.windowMS or []]
            p_values[one.id] = unpaired_ratio(allowed_ms, one.new.windowMS or []).p_value
    adjusted = dict(zip(p_values, hochberg(list(p_values.values())), strict=True))
    return [_decided(one, limit, adjusted, by_ratio) for one in measured], len(adjusted)


def _measured(old: CaseRow, new: CaseRow) -> CaseComparison:
    """With an interval where the samples allow one, and no decision yet."""
    for side, row in (("A", old), ("B", new)):
        lacking = _lacking(row)
        if lacking is not None:
            return CaseComparison(old.id, old, new, Finding.UNDECIDED, f"{side} has {lacking}")
    unstable = tuple(f"{side} {what}" for side, row in (("A", old), ("B", new)) for what in _unstable(row))
    interval = unpaired_ratio(old.windowMS or [], new.windowMS or [])
    return CaseComparison(old.id, old, new, Finding.UNDECIDED, interval=interval, unstable=unstable)


def _unstable(row: CaseRow) -> list[str]:
    """What its windows show, and what else the report says: older reports say nothing."""
    seen = [f"{found.kind}: {found.message}" for found in instabilities(row.windowMS or [])]
    return list(dict.fromkeys([*seen, *(row.unstable or [])]))


def _lacking(row: CaseRow) -> str | None:
    """What is wrong with a row's samples, or None."""
    windows = row.windowMS
    if not windows:
        return "no samples (windowMS)"
    if len(windows) < MIN_WINDOWS:
        return f"samples of {len(windows)} windows, and {MIN_WINDOWS} are needed"
    if not math.isclose(fmean(windows), row.iterationMS, rel_tol=1e-6):
        return "windows whose mean is not its iterationMS"
    return None


def _decided(one: CaseComparison, limit: float, adjusted: Mapping[str, float], by_ratio: bool) -> CaseComparison:
    if one.interval is None:
        if not by_ratio:
            return one
        finding = Finding.REGRESSION if one.ratio > limit else Finding.FINE
        return replace(one, finding=finding, why=f"by the ratio of means alone, since {one.why}")
    if one.interval.high <= limit:
        return replace(one, finding=Finding.FINE)
    p_value = adjusted.get(one.id)
    if one.interval.low <= limit:
        return replace(one, p_value=p_value, why="the limit lies inside the interval")
    if p_value is None or p_value > 1 - LEVEL:
        why = f"the interval lies above the limit, which can be chance among {len(adjusted)} claims"
        return replace(one, p_value=p_value, why=why)
    return replace(one, finding=Finding.REGRESSION, p_value=p_value)


def hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for making all these claims at once, in the order given (Hochberg 1988).

    Of m, the i-th largest (i from 1) is multiplied by i, and none is larger than one after it. With a probability of
    at least 95 % none of the claims at 0.05 is then a false one, if the p-values are independent or rise together.
    """
    adjusted = [1.0] * len(p_values)
    least = 1.0
    for i, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True), 1):
        least = min(least, i * p_values[index])
        adjusted[index] = least
    return adjusted
