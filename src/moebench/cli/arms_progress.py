"""What `moebench arms` shows while it trains: a live line on a terminal, a few plain lines elsewhere."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from moebench.arms.config import Arm
from moebench.arms.results import ArmResult, Said
from moebench.arms.run import Asked
from moebench.cli.progress import seconds_text
from moebench.show.text import figure, short

PLAIN_LINES = 4
"""Of training, for each arm, where there is no terminal."""


class ArmsProgress:
    """A Watcher of an arms run."""

    def __init__(self, console: Console, asked: Asked) -> None:
        self._console, self._asked = console, asked
        self._budget_s = asked.preset.train.budget_seconds
        self._name = ""
        self._phase = ""
        self._next_line_s = 0.0
        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[figures]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._live.add_task("", total=self._budget_s, figures="")

    def __enter__(self) -> "ArmsProgress":
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def began(self, arm: Arm, repeat: int) -> None:
        self._name = arm if self._asked.repeats == 1 else f"{arm} {repeat + 1}/{self._asked.repeats}"
        self._phase, self._next_line_s = "", self._budget_s / PLAIN_LINES
        self._live.update(self._task, description=f"{self._name} starting", completed=0, figures="")

    def said(self, said: Said) -> None:
        figures = ""
        if said.tokens_per_s is not None:
            loss = "" if said.loss is None else f"loss {said.loss:.3f}, "
            left = seconds_text(said.left_s)
            figures = f"step {said.step}, {loss}{short(said.tokens_per_s)} tokens/s, {left} left"
        self._live.update(
            self._task, description=f"{self._name} {said.phase}", completed=said.elapsed_s, figures=figures
        )
        new_phase = said.phase != self._phase and said.phase != "training"
        if not self._console.is_terminal and (new_phase or said.elapsed_s >= self._next_line_s):
            self._console.print(f"{self._name} {said.phase} {figures}".rstrip(), soft_wrap=True)
            self._next_line_s = max(self._next_line_s, said.elapsed_s) + self._budget_s / PLAIN_LINES
        self._phase = said.phase

    def ended(self, result: ArmResult) -> None:
        loss = "no loss" if result.final_loss is None else f"held-out loss {result.final_loss:.4f}"
        line = f"{self._name} {result.status}: {result.steps} steps, {figure(result.tokens_per_s)} tokens/s, {loss}"
        self._console.print(line if result.message is None else f"{line}; {result.message}", soft_wrap=True)
