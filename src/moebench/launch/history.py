"""What a run's journal says of each case: the attempts at it, and the one that counts. Any prefix of a journal
replays to a valid history."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moebench.launch.journal import Entry, Sweep
from moebench.status import Reason, Status, is_finished


@dataclass(frozen=True)
class Attempt:
    """One attempt at a case. `status` is none while it runs, and for ever if the sweep was killed."""

    number: int
    launch: str | None = None
    key: str | None = None
    status: Status | None = None
    reason: Reason | None = None
    message: str | None = None
    log: str | None = None
    injected: bool = False
    """A fault struck it on purpose: whatever came of it is no result of the case."""
    surroundings: dict[str, str] = field(default_factory=dict)
    """Of the sweep that made it."""

    @property
    def is_final(self) -> bool:
        """Nothing but a wish to repeat it leads to another attempt."""
        return is_finished(self.status, self.reason) and not self.injected


class History:
    def __init__(self, lines: Iterable[Sweep | Entry]) -> None:
        self.sweeps = 0
        self.last_time: str | None = None
        self._attempts: dict[str, dict[int, Attempt]] = {}
        self._not_run: dict[str, str] = {}
        surroundings: dict[str, str] = {}
        for line in lines:
            self.last_time = line.time
            if isinstance(line, Sweep):
                self.sweeps += 1
                surroundings = line.surroundings
            elif line.attempt == 0:
                self._not_run[line.case] = line.message or ""
            else:
                self._take(line, surroundings)

    def _take(self, entry: Entry, surroundings: dict[str, str]) -> None:
        attempts = self._attempts.setdefault(entry.case, {})
        known = attempts.get(entry.attempt)
        if entry.status is None and known is not None:
            return
        attempts[entry.attempt] = Attempt(
            number=entry.attempt,
            launch=entry.launch,
            key=entry.key or (known.key if known else None),
            status=entry.status,
            reason=entry.reason,
            message=entry.message,
            log=entry.log,
            injected=bool(entry.injected) or (known is not None and known.injected),
            surroundings=known.surroundings if known else surroundings,
        )

    def attempts(self, case_id: str) -> list[Attempt]:
        """In the order of their numbers."""
        return [attempt for _, attempt in sorted(self._attempts.get(case_id, {}).items())]

    def unended(self, case_id: str) -> list[Attempt]:
        """Attempts that began and never ended: their sweep was killed."""
        return [attempt for attempt in self.attempts(case_id) if attempt.status is None]

    def counts(self, case_id: str) -> Attempt | None:
        """The attempt that counts: of those of the newest content without a fault, the last accepted; else the last."""
        ended = [attempt for attempt in self.attempts(case_id) if attempt.status is not None]
        if not ended:
            return None
        newest = [attempt for attempt in ended if attempt.key == ended[-1].key]
        newest = [attempt for attempt in newest if not attempt.injected] or newest
        accepted = [attempt for attempt in newest if attempt.status is Status.ACCEPTED]
        return (accepted or newest)[-1]

    def next_number(self, case_id: str) -> int:
        """Of an attempt that reuses no folder."""
        return max(self._attempts.get(case_id, {0: None})) + 1

    def why_not_run(self, case_id: str) -> str | None:
        return self._not_run.get(case_id) or None
