"""What a sweep of a run folder has to do: everything at first; of a resumed run what is not finished."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import chain

from moebench.cases.case import Case, alternating, report_order
from moebench.cases.plan import Plan, Planned
from moebench.launch.history import Attempt, History
from moebench.launch.supervisor import Todo
from moebench.launch.surroundings import case_key, what_changed
from moebench.status import Reason, Status

STALE = "stale"
GONE = "the matrix no longer has this case"
RETRIABLE = tuple(dict.fromkeys(map(str, chain(Status, Reason, (STALE,)))))
"""What --retry takes beside the unfinished cases, which are run anyway."""


@dataclass(frozen=True)
class Work:
    """`plan` is what the run folder now stands for: cases that are kept are in it as they were measured."""

    plan: Plan
    todo: list[Todo] = field(default_factory=list)
    surroundings: dict[str, str] = field(default_factory=dict)
    """Of all cases together."""

    @property
    def stale(self) -> list[Planned]:
        return [planned for planned in self.plan.cases if planned.stale is not None]


def work(
    new: Plan,
    surroundings: Callable[[Case], dict[str, str]],
    old: Plan | None = None,
    history: History | None = None,
    retry: Collection[str] = (),
) -> Work:
    """Decide for each case of the new plan, and of the old one that a resumed run had.

    Finished means accepted, unsupported, or rejected as incorrect; `retry` names statuses, reasons or `stale` that
    are run all the same. A finished case of other content or surroundings is stale: it is kept, and says why. Cases
    whose windows alternate are run together or not at all.
    """
    history = history or History([])
    before = {planned.case.id: planned for planned in old.cases} if old else {}
    around = {planned.case.id: surroundings(planned.case) for planned in new.cases}
    keys = {planned.case.id: case_key(planned.case, around[planned.case.id]) for planned in new.cases}
    kept = {id for id in keys.keys() & before.keys() if _is_kept(before[id], history.counts(id), keys[id], retry)}
    for group in alternating(new.runnable()):
        ids = {case.id for case in group}
        if not ids <= kept:
            kept -= ids
    cases: list[Planned] = []
    todo: list[Todo] = []
    for planned in new.cases:
        case, was = planned.case, before.pop(planned.case.id, None)
        if was is not None and case.id in kept:
            counts = history.counts(case.id)
            is_stale = counts is not None and counts.key != keys[case.id]
            why = what_changed(was.case, case, counts.surroundings, around[case.id]) if counts and is_stale else None
            cases.append(was.model_copy(update={"stale": why}))
            continue
        cases.append(planned)
        if planned.unsupported is None:
            todo.append(Todo(case, keys[case.id], history.next_number(case.id)))
    cases += [was.model_copy(update={"stale": GONE}) for was in before.values()]
    plan = new.model_copy(update={"cases": sorted(cases, key=lambda planned: report_order(planned.case))})
    return Work(plan, todo, {name: text for one in around.values() for name, text in one.items()})


def _is_kept(was: Planned, counts: Attempt | None, key: str, retry: Collection[str]) -> bool:
    if counts is None:
        return was.unsupported is not None and Status.UNSUPPORTED not in retry
    wanted = counts.status in retry or counts.reason in retry or (STALE in retry and counts.key != key)
    return counts.is_final and not wanted
