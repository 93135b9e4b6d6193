"""Matrix files: TOML that says which cases there are. A mistake in one is named by file, block and key."""

import math
import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from moebench.cases.case import Capacity, Category, Measure, Mode, Pipeline, Precision, Profile, ProfileName
from moebench.cases.shape import Shape
from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.reading import MIB, read_user_file

T = TypeVar("T")

MOST_CASES = 20_000
"""Of one matrix: its lists are multiplied, and a slip of the pen is not to take hours."""


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Listed = Annotated[list[T], BeforeValidator(_as_list), Field(min_length=1)]
"""A list in which TOML may leave out the brackets around a single value."""

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class ShapeOverride(BaseModel):
    """Axes of the shape that a block sets for its own cases; F is an axis of the block itself."""

    model_config = _STRICT
    T: int | None = Field(default=None, ge=1)
    D: int | None = Field(default=None, ge=8)
    E: int | None = Field(default=None, ge=1)
    K: int | None = Field(default=None, ge=1)
    S: int | None = Field(default=None, ge=0)

    def onto(self, shape: Shape) -> Shape:
        return Shape.model_validate(shape.model_dump() | self.model_dump(exclude_none=True))


Loose = ConfigDict(frozen=True, extra="forbid")


class Block(BaseModel):
    """One [[sweep]]: lists that are multiplied into cases, and what this block overrides."""

    model_config = Loose
    category: Category
    backend: Listed[Annotated[str, Field(strict=True, min_length=1, max_length=200)]]
    mode: Listed[Mode]
    ep: Listed[Annotated[int, Field(strict=True, ge=1)]]
    precision: Listed[Precision]
    pipeline: Listed[Pipeline] | None = Field(default=None, description="none: all of the backend's")
    imbalance: Listed[Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]] | None = None
    profile: Listed[Annotated[ProfileName, Field(strict=True)]] | None = None
    F: Listed[Annotated[int, Field(strict=True, ge=8)]] | None = Field(default=None, description="none: the shape's F")
    shape: ShapeOverride = ShapeOverride()
    measure: dict[str, Any] = {}
    capacity: dict[str, Any] = {}

    def size(self) -> int:
        """How many cases its lists make, where every backend has one pipeline."""
        lists = (self.backend, self.mode, self.ep, self.precision, self.imbalance or self.profile or [1], self.F or [1])
        return math.prod(map(len, lists))


class Matrix(BaseModel):
    """A matrix file, validated but not yet expanded."""

    model_config = _STRICT
    name: str
    path: Path
    shape: Shape
    measure: Measure = Measure()
    capacity: Capacity = Capacity()
    profiles: dict[ProfileName, Profile] = {}
    sweep: list[Block] = Field(min_length=1)


def matrix_names() -> list[str]:
    """Names of the matrices that come with moebench."""
    return sorted(p.name.removesuffix(".toml") for p in _shipped() if p.name != "arms.toml")


def _shipped() -> list[Path]:
    folder = Path(str(files("moebench") / "matrices"))
    return sorted(folder.glob("*.toml"))


def find_matrix(name_or_path: str) -> Path:
    """The file of a matrix given by name (`gb300`) or by path. Raises UsageError if there is none."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or "/" in name_or_path:
        if os.path.isfile(path):
            return path
        found = "a folder, not a matrix file" if os.path.isdir(path) else "not there"
        raise UsageError(
            f"{name_or_path}: {found}. Give the path of a TOML file, or one of {', '.join(matrix_names())}."
        )
    for shipped in _shipped():
        if shipped.name == f"{name_or_path}.toml":
            return shipped
    raise UsageError(
        f"there is no matrix named {name_or_path!r}. Name one of {', '.join(matrix_names())}, "
        "or give the path of a TOML file, such as ./mine.toml."
    )


def load_matrix(name_or_path: str) -> Matrix:
    """Read and validate a matrix. Raises UsageError naming file, block, key and value."""
    path = find_matrix(name_or_path)
    try:
        raw = tomllib.loads(read_user_file(path, MIB, "a matrix, a TOML file").decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file that can be read: {quoted(error)}.") from error
    for reserved in ("name", "path"):
        if reserved in raw:
            found = _as_toml(raw[reserved])
            raise UsageError(f"{path}: unknown key `{reserved}` (value {found}). Known keys: {_known(Matrix)}.")
    try:
        matrix = Matrix.model_validate({**raw, "name": path.stem, "path": path})
    except ValidationError as error:
        raise UsageError(f"{path}: {explain(error, Matrix)}") from error
    cases = sum(block.size() for block in matrix.sweep)
    if cases > MOST_CASES:
        raise UsageError(f"{path}: its lists multiply to {cases} cases, and {MOST_CASES} are the most. Shorten them.")
    return matrix


def _known(model: type[BaseModel]) -> str:
    return ", ".join(name for name in model.model_fields if name not in ("name", "path"))


_TABLES: dict[str, type[BaseModel]] = {
    "measure": Measure,
    "capacity": Capacity,
    "shape": Shape,
    "sweep": Block,
}


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of a validation as one sentence: block, key, value, and what would be right.

    An unknown key comes before a missing one, which it often is, misspelt.
    """
    problems = error.errors(include_url=False)
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    where = list(problem["loc"])
    place = _place(where)
    keys = [part for part in where if isinstance(part, str) and part != "[key]"]
    key, found = quoted(keys[-1]), _as_toml(problem["input"])
    if problem["type"] == "extra_forbidden":
        table = _TABLES.get(str(where[0]), model) if len(where) > 1 else model
        if len(where) > 2 and where[0] == "sweep" and where[2] == "shape":
            table = ShapeOverride
        return f"{place}unknown key `{key}` (value {found}). Known keys: {_known(table)}."
    if problem["type"] == "missing":
        return f"{place}the key `{key}` is missing."
    return f"{place}key `{key}`, value {found}: {_what_is_right(problem['type'], problem['msg'])}."


def _what_is_right(kind: str, message: str) -> str:
    if kind == "too_short":
        return "must not be empty"
    if kind in ("model_type", "dict_type"):
        return "must be a table of keys"
    message = quoted(message.removeprefix("Value error, "))
    return message[:1].lower() + message[1:]


def _as_toml(value: Any) -> str:
    """A value as its file would spell it, cut where it is long."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _place(where: list[Any]) -> str:
    if len(where) > 1 and where[0] == "sweep":
        return f"[[sweep]] block {where[1] + 1}: "
    return f"[{quoted(where[0])}]: " if len(where) > 1 else ""
