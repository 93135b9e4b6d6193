"""The rank traces behind a row, where its report lies in the run folder that they are in."""

from dataclasses import dataclass, field
from pathlib import Path

from moebench.cases.plan import load_plan
from moebench.errors import MoebenchError
from moebench.rank.trace import RankTrace, trace_path
from moebench.reduce.accept import judge
from moebench.reduce.traces import attempts_of, read_traces
from moebench.status import Status


@dataclass(frozen=True)
class Evidence:
    """Files of the attempt that counts. Without files or usable traces `problem` says why."""

    attempt: int | None = None
    files: list[Path] = field(default_factory=list)
    traces: list[RankTrace] = field(default_factory=list)
    problem: str | None = None


def evidence_of(report: Path, case_id: str, attempt: int | None) -> Evidence:
    """Traces of all ranks of an attempt, by default the last one, that are accepted by the rules of a report."""
    run = report.parent
    if not (run / "plan.json").is_file():
        return Evidence(problem="only the report is here: it does not lie in its run folder")
    try:
        cases = {planned.case.id: planned.case for planned in load_plan(run).cases}
    except MoebenchError as error:
        return Evidence(problem=str(error))
    if case_id not in cases:
        return Evidence(problem="the run folder that the report lies in has no such case")
    case, attempts = cases[case_id], attempts_of(run, case_id)
    number = attempt or max(attempts, default=0)
    if number not in attempts:
        return Evidence(
            problem=f"the run folder has no traces of attempt {number}" if number else "there are no traces"
        )
    folder = trace_path(run, case_id, number, 0).parent
    files = sorted(folder.glob("rank-*.json"), key=lambda path: (len(path.name), path.name))
    delivered = read_traces(run, case_id, number, case.ep)
    outcome = judge(case, delivered)
    if outcome.status is not Status.ACCEPTED:
        return Evidence(number, files, problem=f"its traces do not count: {outcome.message}")
    return Evidence(number, files, outcome.traces)
