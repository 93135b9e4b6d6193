"""Which cases did the same work, and who was faster. Ratios are times: above 1 means faster."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from moebench.reduce.schema import CaseRow, Meta, Pair, PipelinePair, Report

DIST, MOK, BASELINE = "dist_moe", "mok", "torch"

Key = tuple[str, int, str, str, int, int | float, str | None, int]


@dataclass(frozen=True)
class Match:
    """One workload done by mok and dist_moe: `dist` is the fastest of `all_dist`, which is in report order."""

    dist: CaseRow
    mok: CaseRow
    all_dist: list[CaseRow]

    @property
    def speedup(self) -> float:
        """dist_moe faster by: mok ms / dist_moe ms."""
        return self.mok.iterationMS / self.dist.iterationMS

    def as_pair(self) -> Pair:
        return Pair(dist=self.dist.id, mok=self.mok.id, allDistPipelines=[row.id for row in self.all_dist])


@dataclass(frozen=True)
class Unpaired:
    row: CaseRow
    reason: str


@dataclass(frozen=True)
class Pairing:
    """All matches, sorted by mok id, and every mok and dist_moe case that has none, in report order."""

    matches: list[Match]
    unpaired: list[Unpaired]

    @property
    def pairs(self) -> list[Pair]:
        return [match.as_pair() for match in self.matches]

    @property
    def all_pipeline_pairs(self) -> list[PipelinePair]:
        both = [(match.mok.id, dist.id) for match in self.matches for dist in match.all_dist]
        return [PipelinePair(dist=dist, mok=mok) for mok, dist in sorted(both)]


def pair_cases(meta: Meta, cases: list[CaseRow]) -> Pairing:
    """Pair each mok case with the dist_moe cases of its workload that agree with it where they must."""
    dist_of: dict[Key, list[CaseRow]] = {}
    for row in cases:
        if row.backend == DIST:
            dist_of.setdefault(work_of(row), []).append(row)
    matches, refused = [], {}
    for mok in (row for row in cases if row.backend == MOK):
        candidates = [row for row in dist_of.get(work_of(mok), []) if shape_text(meta, row) == shape_text(meta, mok)]
        differences = {row.id: difference(row, mok) for row in candidates}
        agreeing = [row for row in candidates if differences[row.id] is None]
        if agreeing:
            matches.append(Match(min(agreeing, key=lambda row: row.iterationMS), mok, agreeing))
        else:
            refused[mok.id] = next(iter(differences.values()), f"no {DIST} case of this workload was accepted")
        for row in candidates:
            refused.setdefault(row.id, differences[row.id])
    paired = {row.id for match in matches for row in (match.mok, *match.all_dist)}
    unpaired = [
        Unpaired(row, refused.get(row.id) or f"no {MOK} case of this workload was accepted")
        for row in cases
        if row.backend in (DIST, MOK) and row.id not in paired
    ]
    return Pairing(sorted(matches, key=lambda match: match.mok.id), unpaired)


def pairing(report: Report) -> Pairing:
    return pair_cases(report.meta, report.cases)


def work_of(row: CaseRow) -> Key:
    return (row.mode, row.ep, row.precision, row.category, row.F, row.imbalance, row.profile, row.layers)


def difference(one: CaseRow, other: CaseRow, *, implementation: bool = True) -> str | None:
    """Why two cases of one workload may not be compared, or None. A key absent on both sides is equal."""
    pairs = {
        "routing": (_sha256(one), _sha256(other)),
        "estimator": (one.estimator, other.estimator),
        "hardware": (_hardware(one), _hardware(other)),
        "stale": (one.stale, other.stale),
        "injected": (", ".join(one.injected or ()), ", ".join(other.injected or ())),
    }
    if implementation:
        pairs["implementation"] = (one.implementation, other.implementation)
    for name, (a, b) in pairs.items():
        if a != b:
            return f"{name} differs: {one.backend} {one.pipeline} {a or 'none'}, {other.backend} {b or 'none'}"
    return None


def shape_text(meta: Meta, row: CaseRow) -> str:
    """The sizes of a row's layer: its own, or those of meta."""
    sizes = {"T": meta.T, "D": meta.D, "E": meta.E, "K": meta.K, "S": meta.sharedExperts}
    if row.shape is not None:
        sizes |= {key: size for key, size in row.shape.model_dump(exclude_unset=True).items() if key in sizes}
    return " ".join(f"{axis}={size}" for axis, size in sizes.items() if size is not None)


def _sha256(row: CaseRow) -> str | None:
    return None if row.routing is None else row.routing.sha256


def _hardware(row: CaseRow) -> str | None:
    return None if row.environment is None else row.environment.get("hardware")


def torch_ratios(report: Report) -> dict[str, float]:
    """How many times faster than the torch baseline of its workload each case is, by case id.

    The baseline may be of another implementation class, since it is what a user would write either way.
    """
    baseline_of: dict[Key, list[CaseRow]] = {}
    for row in report.cases:
        if row.backend == BASELINE:
            baseline_of.setdefault(work_of(row), []).append(row)
    ratios = {}
    for row in report.cases:
        for baseline in baseline_of.get(work_of(row), []) if row.backend != BASELINE else []:
            if shape_text(report.meta, row) == shape_text(report.meta, baseline) and not difference(
                row, baseline, implementation=False
            ):
                ratios[row.id] = baseline.iterationMS / row.iterationMS
    return ratios


@dataclass(frozen=True)
class Mean:
    """Geometric mean of one comparison over the workloads of a mode and precision."""

    mode: str
    precision: str
    comparison: str
    workloads: int
    ratio: float


FASTER_BY = f"{DIST} faster by"


def geometric_means(report: Report) -> list[Mean]:
    """Means of dist_moe against mok, and of each backend's fastest pipeline against torch."""
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for mode, precision, comparison, ratio in _comparisons(report):
        ratios.setdefault((mode, precision, comparison), []).append(ratio)
    return [Mean(*key, workloads=len(values), ratio=geometric_mean(values)) for key, values in ratios.items()]


def _comparisons(report: Report) -> Iterator[tuple[str, str, str, float]]:
    for match in pairing(report).matches:
        yield match.mok.mode, match.mok.precision, FASTER_BY, match.speedup
    ratio_of = torch_ratios(report)
    best: dict[tuple[str, Key, str], CaseRow] = {}
    for row in report.cases:
        if row.id in ratio_of:
            key = (row.backend, work_of(row), shape_text(report.meta, row))
            if key not in best or row.iterationMS < best[key].iterationMS:
                best[key] = row
    for row in best.values():
        yield row.mode, row.precision, f"{row.backend} vs {BASELINE}", ratio_of[row.id]


def differing_pairs(report: Report) -> list[str]:
    """Where the report's own pairs differ from those recomputed from its cases. Absent ones do not differ."""
    found = pairing(report)
    checks: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = [
        ("pairs", _dumped(report.pairs), _dumped(found.pairs)),
        ("allPipelinePairs", _dumped(report.allPipelinePairs), _dumped(found.all_pipeline_pairs)),
    ]
    differences = []
    for key, own, recomputed in checks:
        if key not in report.model_fields_set or own == recomputed:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(own, recomputed, strict=False)) if a != b),
            min(len(own), len(recomputed)),
        )
        differences.append(
            f"its own `{key}` ({len(own)}) differ from those recomputed from its cases ({len(recomputed)}), "
            f"first at {key}[{place}]; the recomputed ones are shown. `moebench reduce` writes them anew."
        )
    return differences


def _dumped(entries: Sequence[Pair] | Sequence[PipelinePair]) -> list[dict[str, Any]]:
    return [{key: getattr(entry, key) for key in type(entry).model_fields} for entry in entries]
