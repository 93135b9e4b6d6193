"""A run folder read back: how each of its planned cases ended."""

from dataclasses import dataclass
from pathlib import Path

from moebench.cases.case import Case
from moebench.cases.plan import Plan, Planned, load_plan
from moebench.errors import UsageError
from moebench.launch.history import Attempt, History
from moebench.launch.journal import Journal
from moebench.reduce.accept import Outcome, judge
from moebench.reduce.traces import attempts_of, read_traces
from moebench.status import Status


@dataclass(frozen=True)
class CaseEnd:
    """A planned case, and the outcome of the attempt that counts."""

    case: Case
    outcome: Outcome
    attempts: int = 0
    """How many ended."""
    attempt: int | None = None
    """Number of the one that counts."""
    log: str | None = None
    """Last lines of the guilty rank's log."""
    stale: str | None = None
    """What has changed since it was measured."""


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
    plan, history = load_plan(path), History(Journal(path).read())
    traces = path / "traces"
    if history.last_time is None and not (traces.is_dir() and any(traces.iterdir())):
        raise UsageError(
            f"{path}: nothing to reduce: its traces folder is empty or absent, and no case was ever started. "
            "Run `moebench sweep` first, or name the run folder that has the traces."
        )
    return Run(path, plan, [_end_of(path, planned, history) for planned in plan.cases], history.last_time)


def _end_of(run: Path, planned: Planned, history: History) -> CaseEnd:
    case = planned.case
    reason = planned.unsupported or case.unsupported
    if reason is not None:
        return CaseEnd(case, Outcome(Status.UNSUPPORTED, message=reason), stale=planned.stale)
    counts = history.counts(case.id)
    ended = {attempt.number for attempt in history.attempts(case.id) if attempt.status is not None}
    unrecorded = [number for number in attempts_of(run, case.id) if number not in ended]
    attempts = len(ended) + len(unrecorded)
    if counts is None or counts.status is not Status.ACCEPTED:
        for number in reversed(unrecorded):
            outcome = judge(case, read_traces(run, case.id, number, case.ep))
            if outcome.status is Status.ACCEPTED or counts is None:
                return CaseEnd(case, outcome, attempts, number, stale=planned.stale)
    if counts is None:
        return CaseEnd(case, Outcome(Status.NOT_RUN, message=_why_not_run(case, history)), stale=planned.stale)
    outcome = _outcome(run, case, counts)
    return CaseEnd(case, outcome, attempts, counts.number, counts.log, planned.stale)


def _why_not_run(case: Case, history: History) -> str:
    stopped = history.unended(case.id)
    if stopped and history.why_not_run(case.id) is None:
        return f"attempt {stopped[-1].number} was started, and stopped before it ended"
    return history.why_not_run(case.id) or "the run ended before this case"


def _outcome(run: Path, case: Case, ended: Attempt) -> Outcome:
    """The ranks' traces decide, unless the supervisor saw the attempt fail."""
    assert ended.status is not None
    delivered = read_traces(run, case.id, ended.number, case.ep)
    nothing = not delivered.traces and not delivered.broken
    failed = ended.status in (Status.FAILED, Status.UNSUPPORTED, Status.NOT_RUN)
    if failed or (ended.status is Status.REJECTED and nothing):
        return Outcome(ended.status, ended.reason, ended.message)
    return judge(case, delivered)
