"""The plan of a run: what was asked, case by case, before anything is launched. It is the file plan.json."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moebench.cases.case import Case, Measure
from moebench.cases.shape import Shape
from moebench.errors import UsageError


class Planned(BaseModel):
    """A case, and why it cannot run here, if it cannot."""

    model_config = ConfigDict(frozen=True)
    case: Case
    unsupported: str | None = Field(default=None, description="reason; none: it will be launched")


class Plan(BaseModel):
    """Cases in report order, with the shape and measure of the matrix that the report's meta repeats."""

    model_config = ConfigDict(frozen=True)
    schema_version: int = 1
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
    try:
        return Plan.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"{run}: not a run folder: it has no plan.json.") from error
    except (OSError, ValidationError) as error:
        raise UsageError(f"{path}: not a plan of this version of moebench: {error}") from error
