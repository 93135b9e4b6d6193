"""A run folder read back: how each of its planned cases ended."""

from dataclasses import dataclass
from pathlib import Path

from moebench.cases.case import Case
from moebench.cases.plan import Plan, Planned, load_plan
from moebench.errors import UsageError
from moebench.launch.journal import Entry, Journal
from moebench.reduce.accept import Outcome, judge
from moebench.reduce.traces import attempts_of, read_traces
from moebench.status import Status


@dataclass(frozen=True)
class CaseEnd:
    """A planned case, how its last attempt ended, and how many attempts were started."""

    case: Case
    outcome: Outcome
    attempts: int


@dataclass(frozen=True)
class Run:
    path: Path
    plan: Plan
    ends: list[CaseEnd]
    last_time: str | None
    """ISO time of the last journal entry."""


def read_run(path: Path) -> Run:
    """Read plan, journal and traces of a run folder.

    Raises UsageError where it is no run folder, and where nothing was ever run in it.
    """
    plan, entries = load_plan(path), list(Journal(path).read())
    traces = path / "traces"
    if not entries and not (traces.is_dir() and any(traces.iterdir())):
        raise UsageError(
            f"{path}: nothing to reduce: its traces folder is empty or absent, and no case was ever started. "
            "Run `moebench sweep` first, or name the run folder that has the traces."
        )
    entries_of: dict[str, list[Entry]] = {}
    for entry in entries:
        entries_of.setdefault(entry.case, []).append(entry)
    ends = [_end_of(path, planned, entries_of.get(planned.case.id, [])) for planned in plan.cases]
    return Run(path, plan, ends, max((entry.time for entry in entries), default=None))


def _end_of(run: Path, planned: Planned, entries: list[Entry]) -> CaseEnd:
    case = planned.case
    reason = planned.unsupported or case.unsupported
    if reason is not None:
        return CaseEnd(case, Outcome(Status.UNSUPPORTED, message=reason), attempts=0)
    attempts = {entry.attempt for entry in entries} | set(attempts_of(run, case.id))
    if not attempts:
        return CaseEnd(case, Outcome(Status.NOT_RUN, message="the run ended before this case"), attempts=0)
    last = max(attempts)
    return CaseEnd(case, _last_outcome(run, case, last, entries), attempts=len(attempts - {0}))


def _last_outcome(run: Path, case: Case, attempt: int, entries: list[Entry]) -> Outcome:
    """The ranks' traces decide, unless the supervisor saw the attempt fail or never start."""
    ended = next((e for e in reversed(entries) if e.attempt == attempt and e.status is not None), None)
    delivered = read_traces(run, case.id, attempt, case.ep)
    nothing = not delivered.traces and not delivered.broken
    if ended is not None and (
        ended.status in (Status.FAILED, Status.UNSUPPORTED, Status.NOT_RUN)
        or (ended.status is Status.REJECTED and nothing)
    ):
        return Outcome(ended.status, ended.reason, ended.message)
    if ended is None and nothing:
        return Outcome(Status.NOT_RUN, message=f"attempt {attempt} was started, and stopped before it ended")
    return judge(case, delivered)
