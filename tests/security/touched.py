"""Which files a piece of code opens, lists, makes or moves, told by the interpreter's own audit events."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_EVENTS = {
    "open",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.symlink",
    "os.link",
    "os.truncate",
}
_recorded: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _recorded is not None and event in _EVENTS:
        _recorded.extend(os.fsdecode(part) for part in arguments[:2] if isinstance(part, (str, bytes, os.PathLike)))


sys.addaudithook(_hook)  # it cannot be taken away again, and does nothing between recordings


@contextmanager
def touched(below: Path) -> Iterator[set[Path]]:
    """The paths below a folder that are touched meanwhile, resolved."""
    global _recorded
    found: set[Path] = set()
    _recorded = []
    try:
        yield found
    finally:
        paths, _recorded = [Path(os.path.realpath(text)) for text in _recorded], None
        found |= {path for path in paths if path.is_relative_to(below.resolve())}
