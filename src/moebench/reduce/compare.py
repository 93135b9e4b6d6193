"""A new report against an old one: the cases that can be compared, and what became of the others.

Whether a case became slower is decided by `regression`.
"""

from dataclasses import dataclass

from moebench.errors import UsageError
from moebench.reduce.changes import MetricChange, metric_changes
from moebench.reduce.environments import Environments, compare_environments, facts
from moebench.reduce.pairs import shape_text
from moebench.reduce.regression import CaseComparison, Finding, decide
from moebench.reduce.schema import CaseRow, Meta, RejectedCase, Report
from moebench.status import Reason, Status


@dataclass(frozen=True)
class NotCompared:
    """A case that the old report accepted and that has no ratio."""

    id: str
    finding: Finding
    why: str


@dataclass(frozen=True)
class ReportComparison:
    """All cases are in report order of the old report; `only_new` in that of the new one."""

    max_regression: float
    """0.03 allows 3 % more time."""
    compared: list[CaseComparison]
    not_compared: list[NotCompared]
    only_old: list[str]
    """The new report did not plan them."""
    only_new: list[str]
    """Accepted, and unknown to the old report."""
    regained: list[str]
    """Accepted now, and not before."""
    claims: int
    """Cases whose ratio lies above the limit, and that have enough samples."""
    assumed: dict[str, str]
    """What was taken as equal, and which report does not record it: `A` or `B`."""
    environments: Environments
    changes: list[MetricChange]

    def having(self, finding: Finding) -> list[CaseComparison | NotCompared]:
        everything: list[CaseComparison | NotCompared] = [*self.compared, *self.not_compared]
        return [one for one in everything if one.finding is finding]

    @property
    def exit_status(self) -> int:
        """1 for a finding, 3 where a case is undecided, else 0."""
        if self.having(Finding.REGRESSION) or self.having(Finding.LOST):
            return 1
        return 3 if self.having(Finding.UNDECIDED) else 0


def compare_reports(old: Report, new: Report, max_regression: float, *, by_ratio: bool = False) -> ReportComparison:
    """Compare the cases that the old report accepted with those of the same ids in the new one.

    `by_ratio`: where samples are missing or too few, the ratio of the two means decides. Raises UsageError where the
    reports have no case in common.
    """
    new_rows = {row.id: row for row in new.cases}
    new_rejected = {entry.id: entry for entry in new.rejected}
    known_old = {row.id for row in old.cases} | {entry.id for entry in old.rejected}
    _refuse_strangers(old, new_rows.keys() | new_rejected.keys())
    alike, not_compared, only_old = [], [], []
    assumed: dict[str, str] = {}
    for row in old.cases:
        if row.id in new_rejected:
            not_compared.append(_lost(new_rejected[row.id]))
        elif row.id not in new_rows:
            only_old.append(row.id)
        else:
            other = new_rows[row.id]
            why = _why_not(old.meta, row, new.meta, other, assumed)
            if why is None:
                alike.append((row, other))
            else:
                not_compared.append(NotCompared(row.id, Finding.UNDECIDED, why))
    both = [(row, new_rows[row.id]) for row in old.cases if row.id in new_rows]
    compared, claims = decide(alike, max_regression, by_ratio=by_ratio)
    return ReportComparison(
        max_regression=max_regression,
        compared=compared,
        not_compared=not_compared,
        only_old=only_old,
        only_new=[row.id for row in new.cases if row.id not in known_old],
        regained=[entry.id for entry in old.rejected if entry.id in new_rows],
        claims=claims,
        assumed=assumed,
        environments=compare_environments([(facts(old.meta, a), facts(new.meta, b)) for a, b in both]),
        changes=[change for one, other in alike for change in metric_changes(one, other)],
    )


def _refuse_strangers(old: Report, new_ids: set[str]) -> None:
    if not old.cases:
        raise UsageError("A has no accepted case, so there is nothing to compare with. Give a report that has some.")
    if not any(row.id in new_ids for row in old.cases):
        raise UsageError(
            f"A and B have no case in common: A has {old.cases[0].id}, and B "
            + (f"has {min(new_ids)}" if new_ids else "has none")
            + ". Compare two reports of one matrix."
        )


def _lost(entry: RejectedCase) -> NotCompared:
    """Wrong results and failures are findings; what was not run, or measured badly, says nothing."""
    wrong = entry.status is Status.FAILED or entry.reason in (Reason.INCORRECT, Reason.WRONG_WORKLOAD)
    what = f"{entry.status}, {entry.reason}" if entry.reason else str(entry.status)
    why = f"{what}: {entry.message}" if entry.message else what
    return NotCompared(entry.id, Finding.LOST if wrong else Finding.UNDECIDED, why)


def _why_not(old_meta: Meta, old: CaseRow, new_meta: Meta, new: CaseRow, assumed: dict[str, str]) -> str | None:
    """Why two rows of one id may not be compared, or None. What one report does not record is taken as equal."""
    if old.stale or new.stale:
        side, stale = ("B", new.stale) if new.stale else ("A", old.stale)
        return f"stale in {side}: {stale}"
    a, b = _identity(old_meta, old), _identity(new_meta, new)
    for name in a:
        if a[name] == b[name]:
            continue
        if name != "injected faults" and (a[name] is None or b[name] is None):
            assumed[name] = "A" if a[name] is None else "B"
            continue
        return f"{name} differs: {a[name] or 'none'} in A, {b[name] or 'none'} in B"
    return None


def _identity(meta: Meta, row: CaseRow) -> dict[str, str | None]:
    """What must be equal, by name."""
    profile = (meta.profiles or {}).get(row.profile or "")
    return {
        **{
            name: str(getattr(row, name))
            for name in ("backend", "mode", "ep", "precision", "pipeline", "category", "F")
        },
        "imbalance": f"{row.imbalance:g}",
        "profile": row.profile or "none",
        "layers": str(row.layers),
        "shape": shape_text(meta, row),
        "imbalances of the profile": None if profile is None else " ".join(f"{imbalance:g}" for imbalance in profile),
        "routing": None if row.routing is None else row.routing.sha256,
        "implementation": row.implementation,
        "estimator": row.estimator,
        "hardware": (row.environment or {}).get("hardware") or meta.hardware,
        "injected faults": ", ".join(row.injected or ()) or None,
    }
