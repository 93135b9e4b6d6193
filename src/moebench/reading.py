"""Reading a file that a user named, or that lies in a folder that a user named: regular, and of a sane size."""

import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moebench.errors import UsageError
from moebench.inert import quoted

MIB = 2**20

DEEPEST = 250
"""Lists and objects inside one another; pydantic writes no more than 254."""


def read_user_file(path: Path, at_most_bytes: int, what: str) -> bytes:
    """The bytes of a file. Raises UsageError, naming the file and what to give instead."""
    try:
        if path.is_dir():
            raise UsageError(f"{path}: a folder, not {what}. Give {what}.")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: not a regular file. Give {what}.")
        size = path.stat().st_size
        if size > at_most_bytes:
            raise UsageError(f"{path}: {size / MIB:.0f} MiB is more than {what} can have ({at_most_bytes // MIB} MiB).")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"{path}: not there. Give {what}.") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}. Give {what}.") from error


def first_problem(error: ValidationError) -> str:
    """Where and what, in a line: `cases.0.shape.T: Input should be a valid integer`."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(map(str, problem["loc"])) or "the file"
    return f"{quoted(where)}: {quoted(problem['msg'])}"


def first_unportable(raw: Any) -> tuple[str, Any, str] | None:
    """The first key and value of a JSON document that readers and writers of JSON do not agree on, and why.

    These are numbers that are not finite or over 64 bits, halves of characters, and nesting without end.
    """
    unseen: list[tuple[str, Any, int]] = [("", raw, 1)]
    while unseen:
        key, value, depth = unseen.pop()
        if depth > DEEPEST:
            return key, None, f"more than {DEEPEST} lists and objects inside one another"
        why = _why_unportable(value)
        if why is not None:
            return key, value, why
        children: list[tuple[str, Any]] = []
        if isinstance(value, dict):
            children = [(key, name) for name in value]
            children += [(f"{key}.{name}" if key else name, child) for name, child in value.items()]
        elif isinstance(value, list):
            children = [(f"{key}[{index}]", child) for index, child in enumerate(value)]
        unseen += [(name, child, depth + 1) for name, child in reversed(children)]
    return None


def _why_unportable(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "JSON has no NaN or Infinity. Write null there"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "over 64 bits. Write a decimal or a text there"
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        return "half of a surrogate pair is no character. Write the whole of it"
    return None
