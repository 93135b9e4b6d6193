"""The wall clock of an arm: training only."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of training since it began, `elapsed_s` before that included; stands still while paused."""

    def __init__(self, elapsed_s: float = 0.0) -> None:
        self._began_at = time.perf_counter() - elapsed_s
        self._paused_at: float | None = None

    def now(self) -> float:
        return (time.perf_counter() if self._paused_at is None else self._paused_at) - self._began_at

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused_at = time.perf_counter()
        try:
            yield
        finally:
            self._began_at += time.perf_counter() - self._paused_at
            self._paused_at = None
