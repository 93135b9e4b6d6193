"""What a rank tells the supervisor while it runs: lines of JSON in logs/<launch>/events/rank-<N>.jsonl."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    """`phase` is `start` once, then for each case its phases, and `ended` when the rank's trace is on disk;
    `died` when the rank is about to exit; `left` when it leaves the launch in order."""

    time: float
    pid: int
    phase: str
    case: str | None = None
    attempt: int | None = None
    error: str | None = None


class Progress:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def tell(self, phase: str, case: str | None = None, attempt: int | None = None, error: str | None = None) -> None:
        self._file.write(json.dumps(asdict(Event(time.time(), os.getpid(), phase, case, attempt, error))) + "\n")


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
            found += [(rank, Event(**json.loads(line))) for line in whole.splitlines()]
        return sorted(found, key=lambda pair: pair[1].time)
