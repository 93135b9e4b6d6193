"""Comparisons of cases that were timed together, from differences of their blocks, with the A/A floor of each group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moebench.cases.case import Case
from moebench.reduce.metrics import block_means
from moebench.reduce.pairs import BASELINE, MOK, difference, work_of
from moebench.reduce.ratio import Interval, paired_ratio
from moebench.reduce.schema import CaseRow, Comparison, Floor
from moebench.reduce.verdict import Floor as AAFloor
from moebench.reduce.verdict import aa_floor, holm, least_blocks, verdict

SAME_WITHIN = 0.01
"""Times that differ by less are called the same."""


@dataclass(frozen=True)
class Compared:
    comparisons: list[Comparison]
    """In report order of the case, mok before torch as baseline."""
    floors: list[Floor]


def compare_groups(cases: list[CaseRow]) -> Compared:
    """Every dist_moe case against the mok case of its group, and all against torch; all p-values adjusted together.

    Cases of different groups, or that may not be compared for another reason, are left out: their windows were timed
    one after the other, and drift would be part of the difference.
    """
    groups: dict[str, list[CaseRow]] = {}
    for row in cases:
        windows = row.windowMS or []
        if row.paired is not None and len(windows) == 2 * row.paired.blocks and all(ms > 0 for ms in windows):
            groups.setdefault(row.paired.group, []).append(row)
    floors: dict[str, AAFloor | None] = {}
    shown: list[Floor] = []
    for group, rows in groups.items():
        twin = next((row for row in rows if len(_twin_ms(row)) == len(row.windowMS or ())), None)
        if twin is not None:
            aa = paired_ratio(block_means(twin.windowMS or []), block_means(_twin_ms(twin)))
            floors[group] = aa_floor(aa)
            shown.append(_floor(group, twin, aa, floors[group]))
    pairs = [(group, case, baseline) for group, rows in groups.items() for case, baseline in _pairs(rows)]
    intervals = [
        paired_ratio(block_means(baseline.windowMS or []), block_means(case.windowMS or []))
        for _, case, baseline in pairs
    ]
    claims = [interval.p_value for interval in intervals if interval.enough]
    adjusted = iter(holm(claims))
    return Compared(
        [
            _comparison(case, baseline, interval, floors.get(group), next(adjusted) if interval.enough else None)
            for (group, case, baseline), interval in zip(pairs, intervals, strict=True)
        ],
        shown,
    )


def claims_of(groups: Sequence[Sequence[Case]]) -> int:
    """How many comparisons these groups will give."""
    claims = 0
    for group in groups:
        baselines, moks = (sum(case.backend == backend for case in group) for backend in (BASELINE, MOK))
        claims += moks * (len(group) - moks - baselines) + baselines * (len(group) - baselines)
    return claims


def blocks_for(groups: Sequence[Sequence[Case]]) -> int:
    """Blocks with which the comparisons of these groups can carry their claims, all at once, with room for a block or
    two that disagree: 8 at least."""
    return max(8, least_blocks(max(1, claims_of(groups))) + 2)


def _pairs(rows: list[CaseRow]) -> Iterator[tuple[CaseRow, CaseRow]]:
    """(case, baseline)"""
    for backend in (MOK, BASELINE):
        for baseline in (row for row in rows if row.backend == backend):
            for case in rows:
                backends = case.backend != backend and not (backend == MOK and case.backend == BASELINE)
                same_work = work_of(case) == work_of(baseline)
                if backends and same_work and difference(case, baseline, implementation=backend == MOK) is None:
                    yield case, baseline


def _twin_ms(row: CaseRow) -> list[int | float]:
    """Windows of the case as if it were another one, if it was the one of its group that took part twice."""
    twin = row.paired.aaMS if row.paired else None
    return twin if twin and all(ms > 0 for ms in twin) else []


def _comparison(
    case: CaseRow, baseline: CaseRow, interval: Interval, floor: AAFloor | None, adjusted: float | None
) -> Comparison:
    """`interval` is of case over baseline; how much faster the case is is its inverse."""
    return Comparison(
        case=case.id,
        baseline=baseline.id,
        fasterBy=1 / interval.ratio,
        low=1 / interval.high,
        high=1 / interval.low,
        level=interval.level,
        pValue=interval.p_value,
        adjustedPValue=adjusted,
        blocks=interval.n,
        verdict=str(verdict(interval, floor, SAME_WITHIN, adjusted)),
    )


def _floor(group: str, row: CaseRow, aa: Interval, floor: AAFloor | None) -> Floor:
    return Floor(
        group=group,
        case=row.id,
        ratio=aa.ratio,
        low=aa.low,
        high=aa.high,
        level=aa.level,
        blocks=aa.n,
        effect=None if floor is None else floor.effect,
        biased=None if floor is None else floor.biased,
    )
