"""What a sweep shows while it runs: a live line on a terminal, one plain line a case elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from moebench.launch.supervisor import Ending
from moebench.show.problems import LOG_LINES, shortened
from moebench.show.text import clean, counted
from moebench.status import Status

STYLES = {
    Status.ACCEPTED: "green",
    Status.REJECTED: "yellow",
    Status.FAILED: "red",
    Status.NOT_RUN: "dim",
    Status.UNSUPPORTED: "dim",
}


def seconds_text(seconds: float) -> str:
    """12 s, 3 min 05 s, 1 h 10 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class SweepProgress:
    """A Watcher of the supervisor. `estimates_s` are modeled seconds by case id; measured ones correct the rest."""

    def __init__(self, console: Console, estimates_s: dict[str, float], launch_estimates_s: dict[int, float]) -> None:
        self._console = console
        self._left_s = dict(estimates_s)
        self._launches_left_s = dict(launch_estimates_s)
        self._total = len(estimates_s)
        self._done: set[str] = set()
        self._modeled_s = self._measured_s = 0.0
        self._estimates_s = estimates_s
        self._began_at = time.monotonic()
        self._now = "starting"
        self._live = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[clock]}"),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._live.add_task("starting", total=self._total, clock="")

    def __enter__(self) -> "SweepProgress":
        self._live.start()
        return self

    def stop(self) -> None:
        """Take the live line away."""
        self._live.stop()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def launching(self, ranks: int, cases: int, attempt: int) -> None:
        self._launches_left_s.pop(ranks, None)
        self._now = f"starting {counted(ranks, 'rank')} for {counted(cases, 'case')}"
        self.tick()

    def phase(self, case_id: str, phase: str) -> None:
        if phase != "ended":
            self._now = f"{phase} {case_id}"
            self.tick()

    def ended(self, case_id: str, ending: Ending, seconds: float, *, again: bool) -> None:
        if again:
            self._console.print(self._line(case_id, ending, seconds, "; to be tried again"), soft_wrap=True)
            return
        self._done.add(case_id)
        self._left_s.pop(case_id, None)
        if ending.status is Status.ACCEPTED:
            self._modeled_s += self._estimates_s[case_id]
            self._measured_s += seconds
        self._live.update(self._task, completed=len(self._done))
        if ending.status is Status.NOT_RUN:
            return
        if ending.status is Status.ACCEPTED and self._console.is_terminal:
            self.tick()
            return
        self._console.print(self._line(case_id, ending, seconds), soft_wrap=True)

    def _line(self, case_id: str, ending: Ending, seconds: float, then: str = "") -> Text:
        line = Text(f"{len(self._done):>{len(str(self._total))}}/{self._total} ")
        status = f"{ending.status}: {ending.reason}" if ending.reason else str(ending.status)
        line.append(status, style=STYLES[ending.status])
        line.append(f" {clean(case_id)}")
        if ending.iteration_ms is not None:
            line.append(f" {ending.iteration_ms:.4g} ms")
        line.append(f" ({seconds_text(seconds)}){then}")
        if ending.message:
            line.append("\n  " + shortened(ending.message))
        for said in (ending.log or "").splitlines()[-LOG_LINES:]:
            line.append("\n    | " + shortened(said), style="dim")
        return line

    def tick(self) -> None:
        elapsed = seconds_text(time.monotonic() - self._began_at)
        clock = f"{elapsed}, about {seconds_text(self._eta_s())} left"
        width = max(10, self._console.width - len(clock) - 32)
        now = clean(self._now)
        now = now if len(now) <= width else now[: width - 1] + "~"
        self._live.update(self._task, description=now, clock=clock)

    def _eta_s(self) -> float:
        ratio = self._measured_s / self._modeled_s if self._modeled_s > 0 else 1.0
        return sum(self._left_s.values()) * ratio + sum(self._launches_left_s.values())
