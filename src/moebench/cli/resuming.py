"""The beginning of `moebench sweep --resume`: what a run folder says has been done, and what is left."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from moebench.cases.machine import Machine
from moebench.cases.plan import Plan, Planned, load_plan
from moebench.cases.runnable import why_not_here
from moebench.cli.options import select_again
from moebench.cli.running import DEVICES, plan_of
from moebench.errors import UsageError
from moebench.launch.history import Attempt, History
from moebench.launch.journal import Entry, Journal
from moebench.launch.leftovers import end_leftovers
from moebench.launch.supervisor import Todo
from moebench.launch.surroundings import NOT_FOUND, package_of, surroundings
from moebench.launch.work import Work, work
from moebench.reduce.accept import judge
from moebench.reduce.traces import attempts_of, read_traces
from moebench.status import Status


def resumed_work(run: Path, machine: Machine, retry: Sequence[str]) -> tuple[Work, str, list[str]]:
    """What is left of a run, the device it asked for, and notes for the user. The caller holds the run's lock."""
    end_leftovers(run)
    _refuse_links(run)
    old, journal = load_plan(run), Journal(run)
    asked = dict(old.asked)
    device, measured = asked.pop("device", "auto"), asked.pop("measured", {})
    if device not in DEVICES or not isinstance(measured, dict):
        raise UsageError(f"{run / 'plan.json'}: `asked` has a device, or measured keys, that nobody can ask for.")
    notes = []
    try:
        new = plan_of(select_again(asked), machine, device, measured, asked)
    except UsageError as error:
        notes.append(f"the matrix cannot be read again, so the run goes on as it was planned: {error}")
        still = [Planned(case=one.case, unsupported=why_not_here(one.case, machine)) for one in old.cases]
        new = old.model_copy(update={"cases": still})
    _put_on_record(run, old, journal)
    to_do = work(new, lambda case: surroundings(case, machine, device), old, History(journal.read()), retry)
    for todo in to_do.todo:
        path = todo.case.backend_path
        if path is not None and to_do.surroundings.get(f"code of {package_of(path)}") == NOT_FOUND:
            raise UsageError(f"--backend {path}: the package is not found here. Is it on PYTHONPATH?")
    return replace(to_do, todo=[_numbered(run, todo) for todo in to_do.todo]), device, notes


def _numbered(run: Path, todo: Todo) -> Todo:
    """With an attempt whose folder is new, also where the journal was lost."""
    return replace(todo, attempt=max([todo.attempt, *(number + 1 for number in attempts_of(run, todo.case.id))]))


def _refuse_links(run: Path) -> None:
    """A resumed sweep writes into a folder that it did not make, and must not be led out of it."""
    for name in ("journal.jsonl", "traces", "logs"):
        for path in (run / name, *(run / name).glob("*")):
            if path.is_symlink():
                raise UsageError(f"{path}: a symbolic link: a resumed sweep would write elsewhere. Move it back here.")


def _put_on_record(run: Path, plan: Plan, journal: Journal) -> None:
    """The journal is made to say what the traces say: attempts that every rank finished while nobody was left to write
    it down are ended, and an accepted one whose traces are gone, or are others, is accepted no more."""
    history = History(journal.read())
    for planned in plan.cases:
        case = planned.case
        known = {attempt.number: attempt for attempt in history.attempts(case.id)}
        for number in sorted({*known, *attempts_of(run, case.id)}):
            attempt = known.get(number, Attempt(number))
            if attempt.status not in (None, Status.ACCEPTED):
                continue
            delivered = read_traces(run, case.id, number, case.ep)
            outcome = judge(case, delivered)
            unended = attempt.status is None and not delivered.missing and not delivered.broken
            if unended or (attempt.status is Status.ACCEPTED and outcome.status is not Status.ACCEPTED):
                journal.add(
                    Entry(
                        case=case.id,
                        attempt=number,
                        launch=attempt.launch,
                        key=attempt.key,
                        status=outcome.status,
                        reason=outcome.reason,
                        message=outcome.message,
                    )
                )
