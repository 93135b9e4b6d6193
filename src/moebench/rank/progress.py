"""What a rank tells the supervisor while it runs: lines of JSON in logs/<launch>/events/rank-<N>.jsonl."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from moebench.status import Reason


@dataclass(frozen=True)
class Event:
    """`phase` is `start` once, then for each case its phases, and `ended` when the rank's trace is on disk;
    `died` when the rank is about to exit; `left` when it waits for its peers to leave too."""

    time: float
    """Seconds of the host's monotonic clock, the same for all processes."""
    pid: Annotated[int, Field(gt=0)]
    phase: str
    case: str | None = None
    attempt: int | None = None
    error: str | None = None
    reason: Reason | None = None


class Progress:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def tell(
        self,
        phase: str,
        case: str | None = None,
        attempt: int | None = None,
        error: str | None = None,
        reason: Reason | None = None,
    ) -> None:
        event = Event(time.monotonic(), os.getpid(), phase, case, attempt, error, reason)
        self._file.write(json.dumps(asdict(event)) + "\n")


class Follower:
    """Reads the new events of all ranks of a launch, each time it is asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def new_events(self) -> list[tuple[int, Event]]:
        """(rank, event) since the last call, in the order of their times."""
        found = []
        for path in sorted(self._folder.glob("rank-*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole, newline, _ = text.rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            rank = int(path.stem.removeprefix("rank-"))
            found += [(rank, event) for line in whole.split(b"\n") if (event := _event(line)) is not None]
        return sorted(found, key=lambda pair: pair[1].time)


_EVENT = TypeAdapter(Event)


def _event(line: bytes) -> Event | None:
    """A line that is no event, such as one that a full disk cut short, is passed over."""
    try:
        return _EVENT.validate_json(line)
    except ValueError:
        return None
