"""The plan of a run: what was asked, case by case, before anything is launched. It is the file plan.json."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.cases.case import Case, Measure
from moebench.cases.shape import Shape
from moebench.errors import UsageError
from moebench.reading import MIB, read_user_file

SCHEMA_VERSION = 1


class Planned(BaseModel):
    """A case, and why it cannot run here, if it cannot."""

    model_config = ConfigDict(frozen=True)
    case: Case
    unsupported: str | None = Field(default=None, description="reason; none: it will be launched")


class Plan(BaseModel):
    """Cases in report order, with the shape and measure of the matrix that the report's meta repeats."""

    model_config = ConfigDict(frozen=True)
    schema_version: int = SCHEMA_VERSION
    matrix: str
    shape: Shape
    measure: Measure
    profiles: dict[str, list[float]]
    notes: list[str] = []
    cases: list[Planned]

    def runnable(self) -> list[Case]:
        return [planned.case for planned in self.cases if planned.unsupported is None]


def load_plan(run: Path) -> Plan:
    """The plan of a run folder. Raises UsageError where there is none or it cannot be read."""
    path = run / "plan.json"
    if not path.exists():
        raise UsageError(f"{run}: not a run folder: it has no plan.json. Name a folder that `moebench sweep` made.")
    try:
        plan = Plan.model_validate_json(read_user_file(path, 256 * MIB, "the plan.json that a sweep wrote"))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise UsageError(
            f"{path}: {where}: {problem['msg']}. It is not a plan of this version of moebench; run the sweep again."
        ) from error
    if plan.schema_version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: schema_version {plan.schema_version} is newer than {SCHEMA_VERSION}: update moebench."
        )
    if not plan.cases:
        raise UsageError(f"{path}: `cases` is empty, so there is nothing to reduce.")
    return plan
