"""The journal of a run: append-only JSONL, one line for each sweep of the run and each change of state of a case."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.status import Reason, Status


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Sweep(BaseModel):
    """A sweep began on this run folder: the entries behind it are its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    time: str = Field(default_factory=_now)
    pid: int
    host: str
    surroundings: dict[str, str] = Field(description="code, libraries and device that its numbers depend on")
    injected: list[str] = Field(default=[], description="faults that it was told to inject")


class Entry(BaseModel):
    """An attempt at a case began, or ended: then `status` says how. Attempt 0 with not-run: it was never begun."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    time: str = Field(default_factory=_now, description="for people; the order of the lines is what counts")
    case: str
    attempt: int = Field(ge=0, le=999_999)
    launch: str | None = None
    key: str | None = Field(default=None, description="content hash of the case and its surroundings")
    injected: list[str] | None = Field(default=None, description="faults that struck the attempt on purpose")
    status: Status | None = None
    reason: Reason | None = None
    message: str | None = None
    log: str | None = Field(default=None, description="last lines of the guilty rank's log")


class Journal:
    """Appends lines to journal.jsonl of a run folder; each is on disk when `add` returns.

    A line that cannot be written whole (disk full) raises OSError and leaves at most a torn line, which the next
    one does not join.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / "journal.jsonl"

    def add(self, line: Sweep | Entry) -> None:
        data = line.model_dump_json(exclude_none=True).encode() + b"\n"
        try:
            with self.path.open("a+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                    data = b"\n" + data
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def read(self) -> Iterator[Sweep | Entry]:
        """Lines in order. One that cannot be read, such as the torn last line of a killed writer, is passed over."""
        try:
            data = self.path.read_bytes() if self.path.is_file() else b""
        except OSError:
            return
        for line in data.split(b"\n"):
            try:
                raw = json.loads(line)
                yield Entry.model_validate(raw) if "case" in raw else Sweep.model_validate(raw)
            except (ValueError, TypeError, RecursionError):
                continue
