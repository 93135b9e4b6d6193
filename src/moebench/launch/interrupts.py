"""Ctrl-C, SIGTERM and a closed terminal: once ends the sweep after the current case, twice ends it now."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ONCE = {
    signal.SIGINT: "interrupted (Ctrl-C)",
    signal.SIGTERM: "interrupted (SIGTERM)",
    signal.SIGHUP: "terminal closed",
}


@contextmanager
def handle_interrupts(stop: Callable[[str], None]) -> Iterator[None]:
    """`stop(why)` at the first signal; KeyboardInterrupt at a second SIGINT or SIGTERM."""
    seen = 0

    def handler(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1 and number != signal.SIGHUP:
            raise KeyboardInterrupt
        stop(ONCE[signal.Signals(number)])

    heard = [number for number in ONCE if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
