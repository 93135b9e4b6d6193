"""Reading a report file. Every mistake in one is a sentence naming file, key, value and remedy."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.reading import MIB, first_unportable
from moebench.reduce.schema import SCHEMA_VERSION, Report

Made = TypeVar("Made", bound=BaseModel)

MOST_BYTES = 512 * MIB

_KEYS_OF_ARMS = {"config", "bytes", "arms"}

_AGAIN = "Make the report again with `moebench reduce RUN`, or fetch the file again"


def load_report(path: Path | str) -> Report:
    """The report in a JSON file.

    Unknown keys are kept. Raises UsageError for a file that cannot be read, is empty, truncated or not JSON,
    that comes from a newer moebench, or whose keys have wrong types, duplicate ids, or what other JSON readers
    cannot hold: numbers that are not finite or over 64 bits, halves of characters, nesting without end.
    """
    path = Path(path)
    return parse_report(path, read_json(path))


def parse_report(path: Path, raw: dict[str, Any]) -> Report:
    """The report in the JSON object of a file; raises UsageError as `load_report` does."""
    if is_arms(raw):
        raise UsageError(f"{path}: a report of `moebench arms`, which has no cases. `moebench show {path}` draws it.")
    return as_model(path, raw, Report, SCHEMA_VERSION)


def is_arms(raw: dict[str, Any]) -> bool:
    """Whether a report is one of `moebench arms`: see `moebench.arms.report`."""
    return raw.keys() >= _KEYS_OF_ARMS


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises UsageError as `load_report` does."""
    raw = _read_json(path)
    found = first_unportable(raw)
    if found is not None:
        key, value, wrong = found
        raise UsageError(f"{path}: key `{quoted(key)}`, value {_shown(value)}: {wrong}. {_AGAIN}.")
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: a report is a JSON object, this is {_shown(raw)}. {_AGAIN}.")
    return raw


def as_model(path: Path, raw: dict[str, Any], kind: type[Made], newest: int) -> Made:
    """A kind of report, up to its newest version; raises UsageError as `load_report` does."""
    _refuse_newer(path, raw, newest)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        hint = " `moebench schema` prints what a report holds." if kind is Report else ""
        raise UsageError(f"{path}: {_problem(error, raw)}{hint}") from error


def _read_json(path: Path) -> Any:
    try:
        if path.is_char_device() or path.is_block_device():
            raise UsageError(f"{path}: a device, not a report. Name a report JSON.")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path}: more than the {MOST_BYTES // MIB} MiB that a report can have. Name a report.")
        text = data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file. `moebench reduce RUN` makes a report.") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path}: is a folder. Name the report in it, such as {path / 'report.json'}.") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}. Check its path and permissions.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a JSON file: byte {error.start} is not UTF-8. {_AGAIN}.") from error
    if not text.strip():
        raise UsageError(f"{path}: the file is empty. {_AGAIN}.")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        truncated = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        what = "truncated JSON" if truncated else "not JSON"
        raise UsageError(
            f"{path}: {what}: line {error.lineno}, column {error.colno}: {error.msg}. {_AGAIN}."
        ) from error
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not a report: its JSON cannot be read ({quoted(error)}). {_AGAIN}.") from error


def _refuse_newer(path: Path, raw: dict[str, Any], newest: int) -> None:
    version = raw.get("schemaVersion", newest)
    if isinstance(version, bool) or not isinstance(version, int):
        raise UsageError(f"{path}: key `schemaVersion`, value {_shown(version)}: must be an integer. {_AGAIN}.")
    if version > newest:
        raise UsageError(
            f"{path}: key `schemaVersion`, value {version}: written by a newer moebench; this one reads up "
            f"to {newest}. Upgrade moebench to read it."
        )


def _problem(error: ValidationError, raw: dict[str, Any]) -> str:
    """The first problem in words. Steps of `loc` that name a type, not a key of the file, are left out."""
    problem = error.errors(include_url=False)[0]
    key, value, case_id = "", raw, ""
    for step in problem["loc"]:
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            key, value = f"{key}[{step}]", value[step]
        elif isinstance(value, dict) and step in value:
            key, value = f"{key}.{step}" if key else str(step), value[step]
        elif problem["type"] == "missing":
            key = f"{key}.{step}" if key else str(step)
        if isinstance(value, dict) and isinstance(value.get("id"), str):
            case_id = f" of {quoted(value['id'])}"
    message = quoted(problem["msg"].removeprefix("Value error, ").removesuffix("."), at_most=400)
    key = quoted(key)
    if problem["type"] == "missing":
        return f"the key `{key}`{case_id} is missing. Add it."
    if not key:
        return f"{message}. Keep one of the two."
    message = message[:1].lower() + message[1:]
    return f"key `{key}`{case_id}, value {_shown(value)}: {message}. Correct the value."


def _shown(value: Any) -> str:
    """A value as JSON spells it, which is inert; NaN and Infinity as Python does."""
    text = str(value) if isinstance(value, float) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
