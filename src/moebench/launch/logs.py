"""Logs of ranks and of torchrun: kept below a size while they are written, and quoted when something breaks."""

import os
from pathlib import Path

MOST_BYTES = 2**26
"""Of one log. Beyond, its middle is dropped."""
KEPT_BYTES = 2**20
"""Of its beginning, and of its end."""
TAIL_LINES = 12
TAIL_BYTES = 2**16


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, whatever bytes are in it; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
    said = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(said[-lines:])


def cap(folder: Path, most_bytes: int = MOST_BYTES, kept_bytes: int = KEPT_BYTES) -> None:
    """Drop the middle of every .log in a folder and below that has grown beyond `most_bytes`.

    Its writers append (O_APPEND), so they go on at the new end. What they write during the cut is lost.
    """
    for path in folder.rglob("*.log"):
        try:
            if path.stat().st_size > most_bytes:
                _cut(path, kept_bytes)
        except OSError:
            continue


def _cut(path: Path, kept_bytes: int) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - kept_bytes)
        end = file.read(kept_bytes)
        file.truncate(kept_bytes)
    dropped = f"\n[moebench dropped {size - 2 * kept_bytes} bytes of this log here]\n".encode()
    with path.open("ab") as file:
        file.write(dropped + end)
