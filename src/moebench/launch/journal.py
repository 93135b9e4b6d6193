"""The journal of a run: append-only JSONL, one line for every change of state of a case."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.status import Reason, Status


class Entry(BaseModel):
    """One line. `status` is set when an attempt has ended, and then says how."""

    model_config = ConfigDict(frozen=True)
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    case: str
    attempt: int
    launch: str | None = None
    status: Status | None = None
    reason: Reason | None = None
    message: str | None = None


class Journal:
    """Appends entries to journal.jsonl of a run folder; each is on disk when `add` returns."""

    def __init__(self, run: Path) -> None:
        self.path = run / "journal.jsonl"

    def add(self, entry: Entry) -> None:
        line = entry.model_dump_json(exclude_none=True) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> Iterator[Entry]:
        """Entries in order. A torn last line, left by a killed writer, is passed over."""
        if not self.path.is_file():
            return
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                yield Entry.model_validate(json.loads(line))
            except (ValueError, RecursionError):
                continue
