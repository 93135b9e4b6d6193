"""The plan of a run: what was asked, case by case, before anything is launched. It is the file plan.json."""

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.cases.case import Case, Measure, Profile, ProfileName
from moebench.cases.routing import rows_per_expert
from moebench.cases.shape import Shape
from moebench.errors import UsageError
from moebench.reading import MIB, first_problem, read_user_file

SCHEMA_VERSION = 1


class Planned(BaseModel):
    """A case, and why it cannot run here, if it cannot."""

    model_config = ConfigDict(frozen=True)
    case: Case
    unsupported: str | None = Field(default=None, description="reason; none: it will be launched")
    stale: str | None = Field(default=None, description="what has changed since it was measured")


class Plan(BaseModel):
    """Cases in report order, with the shape and measure of the matrix that the report's meta repeats."""

    model_config = ConfigDict(frozen=True)
    schema_version: int = SCHEMA_VERSION
    matrix: str
    shape: Shape
    measure: Measure
    profiles: dict[ProfileName, Profile]
    notes: list[str] = []
    asked: dict[str, Any] = Field(default={}, description="options of the sweep, by which a resumed one selects again")
    cases: list[Planned]

    def runnable(self) -> list[Case]:
        return [planned.case for planned in self.cases if planned.unsupported is None]


def load_plan(run: Path) -> Plan:
    """The plan of a run folder. Raises UsageError where there is none, it cannot be read, or no case of it could be."""
    path = run / "plan.json"
    if not path.exists():
        raise UsageError(f"{run}: not a run folder: it has no plan.json. Name a folder that `moebench sweep` made.")
    try:
        plan = Plan.model_validate_json(read_user_file(path, 256 * MIB, "the plan.json that a sweep wrote"))
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error)}. {_NOT_OURS}") from error
    if plan.schema_version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema_version {plan.schema_version} is newer than {SCHEMA_VERSION}: update moebench."
        )
    if not plan.cases:
        raise UsageError(f"{path}: `cases` is empty, so there is nothing to reduce.")
    contradiction = _contradiction(plan)
    if contradiction is not None:
        raise UsageError(f"{path}: {contradiction}. {_NOT_OURS}")
    return plan


_NOT_OURS = "It is not a plan of this version of moebench; run the sweep again."


def _contradiction(plan: Plan) -> str | None:
    """What no sweep would have planned: a case twice, or one that nobody could route."""
    for case_id, times in Counter(planned.case.id for planned in plan.cases).items():
        if times > 1:
            return f"{case_id} is there {times} times"
    for case in (planned.case for planned in plan.cases if planned.case.unsupported is None):
        try:
            for imbalance in set(case.layer_imbalances):
                rows_per_expert(case.shape.T, case.shape.K, case.shape.E, case.ep, imbalance)
        except ValueError as error:
            return f"{case.id}: {error}"
    return None
