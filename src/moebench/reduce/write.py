"""Writing a report: JSON that every parser reads, whole or not at all."""

import json
from pathlib import Path

from moebench.errors import UsageError
from moebench.rank.trace import write_atomically
from moebench.reduce.schema import Open


def to_json(report: Open) -> str:
    """The report as JSON text: keys in their order, absent keys absent, NaN and Infinity as null."""
    return json.dumps(report.model_dump(mode="json", exclude_unset=True), indent=1, allow_nan=False) + "\n"


def check_place(path: Path) -> None:
    """Raises UsageError where a report cannot be put: what exists and is no regular file, such as a device, is never
    replaced, and no folder is made."""
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise UsageError(f"{path}: not a regular file, so it is not replaced. Give the name of a file with -o FILE.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} is not there. Make it, or give another place with -o FILE.")


def write_report(report: Open, path: Path) -> None:
    """Write a report file atomically. Raises UsageError where it cannot be written."""
    check_place(path)
    try:
        write_atomically(path, to_json(report))
    except OSError as error:
        raise UsageError(
            f"{path}: the report cannot be written: {error.strerror}. Make room, or choose another place."
        ) from error
