"""Run folders to one report: every planned case ends in `cases` or in `rejected`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moebench.cases.case import Case, report_order
from moebench.cases.plan import Plan
from moebench.errors import UsageError
from moebench.reduce.comparisons import compare_groups
from moebench.reduce.pairs import pair_cases
from moebench.reduce.row import case_row
from moebench.reduce.runs import CaseEnd, Run, read_run
from moebench.reduce.schema import SCHEMA_VERSION, CaseRow, Meta, RejectedCase, Report
from moebench.reduce.write import to_json, write_report
from moebench.status import Status

__all__ = ["reduce_runs", "to_json", "write_report"]


def reduce_runs(runs: list[Path]) -> Report:
    """One report from one or more run folders.

    Of a case that several runs have, an accepted execution beats others; else the run given later counts.
    Meta is that of the first run. The same traces always give the same report. Raises UsageError where a folder is
    no run, nothing was run in it, or two runs mean different work by one id.
    """
    read = [read_run(path) for path in runs]
    if not read:
        raise UsageError("no run folder was given. Name one or more, such as runs/latest.")
    ends = sorted(_merge(read).values(), key=lambda end: report_order(end.case))
    return _report(read, ends)


def _merge(runs: list[Run]) -> dict[str, CaseEnd]:
    merged: dict[str, CaseEnd] = {}
    origin: dict[str, Path] = {}
    for run in runs:
        for end in run.ends:
            earlier = merged.get(end.case.id)
            if earlier is not None:
                _refuse_other_work(earlier.case, end.case, origin[end.case.id], run.path)
                if _accepted(earlier) and not _accepted(end):
                    continue
            merged[end.case.id], origin[end.case.id] = end, run.path
    return merged


def _accepted(end: CaseEnd) -> bool:
    return end.outcome.status is Status.ACCEPTED


def _refuse_other_work(one: Case, other: Case, run: Path, other_run: Path) -> None:
    meanings = {
        "shape": (one.shape, other.shape),
        "imbalance of its layers": (one.layer_imbalances, other.layer_imbalances),
        "seed": (one.measure.seed, other.measure.seed),
        "capacity": (one.capacity, other.capacity),
        "use of CUDA graphs": (one.measure.cuda_graph, other.measure.cuda_graph),
        "flush of L2": (one.measure.l2_flush, other.measure.l2_flush),
    }
    for name, (a, b) in meanings.items():
        if a != b:
            raise UsageError(
                f"{one.id}: its {name} is ({a}) in {run} and ({b}) in {other_run}, so one row cannot "
                "stand for both. Reduce these runs into separate reports."
            )


def _report(runs: list[Run], ends: Iterable[CaseEnd]) -> Report:
    plan = runs[0].plan
    cases: list[CaseRow] = []
    rejected: list[RejectedCase] = []
    rank_traces = 0
    for end in ends:
        outcome = end.outcome
        if _accepted(end):
            cases.append(_row(end, plan))
            rank_traces += len(outcome.traces)
        else:
            rejected.append(_rejected(end))
    meta = _meta(runs, cases, rank_traces)
    paired, compared = pair_cases(meta, cases), compare_groups(cases)
    of_pairs: dict[str, Any] = {"comparisons": compared.comparisons, "floors": compared.floors}
    counts = {
        "matchedWorkloads": len(paired.pairs),
        "distPipelinePairs": len(paired.all_pipeline_pairs),
    }
    return Report(
        schemaVersion=SCHEMA_VERSION,
        meta=meta.model_copy(update=counts),
        cases=cases,
        pairs=paired.pairs,
        allPipelinePairs=paired.all_pipeline_pairs,
        rejected=rejected,
        **(of_pairs if compared.floors or compared.comparisons else {}),
    )


def _row(end: CaseEnd, plan: Plan) -> CaseRow:
    row = case_row(end.case, end.outcome.traces, plan.shape, plan.measure)
    found: dict[str, Any] = {"attempt": end.attempt, "attempts": end.attempts}
    return row.model_copy(update=found if end.stale is None else found | {"stale": end.stale})


def _rejected(end: CaseEnd) -> RejectedCase:
    optional = {"log": end.log, "stale": end.stale}
    return RejectedCase(
        id=end.case.id,
        status=end.outcome.status,
        reason=end.outcome.reason,
        message=end.outcome.message,
        attempts=end.attempts,
        **{key: value for key, value in optional.items() if value},
    )


def _meta(runs: list[Run], cases: list[CaseRow], rank_traces: int) -> Meta:
    """Counts of pairs are 0 here: pairing needs meta's shape first."""
    plan = runs[0].plan
    shape, measure = plan.shape, plan.measure
    times = [run.last_time for run in runs if run.last_time is not None]
    return Meta(
        reportDate=max(times)[:10] if times else None,
        hardware=_common(cases, "hardware"),
        cuda=_common(cases, "cuda"),
        T=shape.T,
        D=shape.D,
        E=shape.E,
        K=shape.K,
        F=shape.F,
        sharedExperts=shape.S,
        sharedPrecision="BF16",
        windows=measure.windows,
        iterationsPerWindow=measure.iterations,
        warmups=measure.warmups,
        acceptedExecutions=len(cases),
        rankTraces=rank_traces,
        matchedWorkloads=0,
        distPipelinePairs=0,
        balancedRows=shape.T * shape.K,
        profiles=_profiles(runs),
    )


def _common(cases: list[CaseRow], key: str) -> str | None:
    """What the environments of the cases say; where they differ, all of it."""
    found = {str(row.environment[key]) for row in cases if row.environment and row.environment.get(key)}
    return ", ".join(sorted(found)) or None


def _profiles(runs: list[Run]) -> dict[str, list[float]]:
    profiles: dict[str, list[float]] = {}
    for run in runs:
        for letter, imbalances in run.plan.profiles.items():
            if profiles.setdefault(letter, imbalances) != imbalances:
                raise UsageError(
                    f"{run.path}: profile {letter} is {imbalances}, and {profiles[letter]} in an earlier run"
                    ". Reduce these runs into separate reports."
                )
    return profiles
