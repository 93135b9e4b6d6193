"""Reading an arms report."""

import json
from pathlib import Path

from pydantic import ValidationError

from moebench.arms.report import SCHEMA_VERSION, ArmsReport
from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.reading import MIB, first_problem, first_unportable, read_user_file

_KEYS = {"config", "bytes", "arms"}


def load_if_arms(path: Path) -> ArmsReport | None:
    """The arms report in a file; None for any other file. Raises UsageError where it is one, but not right."""
    try:
        raw = json.loads(read_user_file(path, 64 * MIB, "a report"))
    except (UsageError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not raw.keys() >= _KEYS:
        return None
    version = raw.get("schemaVersion", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UsageError(f"{path}: written by a newer moebench (arms report {version}). Upgrade moebench to read it.")
    found = first_unportable(raw)
    if found is not None:
        raise UsageError(f"{path}: key `{quoted(found[0])}`: {found[2]}.")
    try:
        return ArmsReport.model_validate(raw)
    except ValidationError as error:
        raise UsageError(f"{path}: not a right arms report: {first_problem(error)}.") from error
