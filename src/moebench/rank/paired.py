"""Cases of one workload timed together: their windows alternate, so that drift and clocks hit all of them alike.

A block is each case's window and then the same in reverse, ABBA for two cases: whatever changes steadily during a
block cancels. The first case takes part twice, as if it were two: what differs between it and itself is what this
machine cannot tell from nothing.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from moebench.rank.execution import Ended, Execution
from moebench.rank.step import Step
from moebench.rank.timing import settle
from moebench.rank.trace import Alternation, Window


@dataclass(frozen=True)
class Turn:
    """Whose window comes, and where it is kept."""

    execution: Execution
    into: list[Window]


class PairedExecution:
    """One attempt at each of several cases of one workload on this rank. All share inputs and weights.

    `together`: all backends are set up at once; else each is set up anew for each of its windows. Each case is
    checked and its peak memory measured alone, before the others exist.
    """

    def __init__(self, executions: Sequence[Execution], group: str, *, together: bool) -> None:
        self.executions, self.together = list(executions), together
        self.current = executions[0]
        """Whose turn it is: a failure is charged to its case."""
        self._blocks = executions[0].case.measure.windows // 2
        for execution in executions:
            execution.trace.alternation = Alternation(group=group, blocks=self._blocks, together=together)

    def run(self) -> None:
        """All phases of all cases. A case that ends early leaves the others to go on. Raises StopAsked before the
        first case, or whatever struck after the ranks had agreed to go on: then `current` says in whose turn."""
        live = [execution for execution in self.executions if self._alone(execution)]
        if self.together:
            self._time_together(live)
        else:
            self._time_one_by_one(live)

    def _alone(self, execution: Execution) -> bool:
        """Check, memory and bytes of one case; False if it ended there."""
        before, self.current = self.current, execution
        if execution is not before:
            execution.inputs, execution.memory = before.inputs, before.memory
            execution.stop = lambda: False
        with suppress(Ended), execution.prepared() as step:
            execution.alone(step)
            return True
        return False

    def _time_together(self, live: list[Execution]) -> None:
        steps: dict[Execution, Step] = {}
        with ExitStack() as stack:
            for execution in live:
                self.current = execution
                with suppress(Ended):
                    steps[execution] = execution.warmed_up(stack.enter_context(execution.set_up()))
            if not steps:
                return
            turns = _turns(list(steps))
            turns[0].execution.instruments.begin()
            for turn in _in_blocks(turns, self._blocks):
                self._enter(turn)
                turn.into.append(turn.execution.window(steps[turn.execution]))
            self._note_instruments(list(steps))
            for execution, step in steps.items():
                self.current = execution
                with suppress(Ended):
                    execution.recheck(step)

    def _time_one_by_one(self, live: list[Execution]) -> None:
        if not live:
            return
        turns, ended = _turns(live), set[Execution]()
        live[0].instruments.begin()
        for turn in _in_blocks(turns, self._blocks):
            execution = turn.execution
            if execution in ended:
                continue
            try:
                with execution.set_up() as step:
                    self._enter(turn)
                    turn.into.append(execution.window(execution.warmed_up(step)))
            except Ended:
                ended.add(execution)
        self._note_instruments(live)
        for execution in live:
            self.current = execution
            if execution not in ended:
                with suppress(Ended), execution.set_up() as step:
                    settle(step, execution.device)
                    execution.recheck(step)

    def _enter(self, turn: Turn) -> None:
        self.current = turn.execution
        turn.execution.enter("timing")

    def _note_instruments(self, executions: Sequence[Execution]) -> None:
        seen = executions[0].instruments.end(*(execution.trace.windows for execution in executions))
        for execution, of_its_windows in zip(executions, seen, strict=True):
            execution.trace.environment |= of_its_windows


def _turns(executions: Sequence[Execution]) -> list[Turn]:
    """The first case, itself once more, and the others."""
    first, *others = [Turn(execution, execution.trace.windows) for execution in executions]
    return [first, Turn(first.execution, first.execution.trace.aa_windows), *others]


def _in_blocks(turns: list[Turn], blocks: int) -> Sequence[Turn]:
    """Each block in mirror image, and begun by another turn than the one before: with two cases, ABBA and BAAB."""
    order: list[Turn] = []
    for block in range(blocks):
        begin = block % len(turns)
        half = turns[begin:] + turns[:begin]
        order += [*half, *reversed(half)]
    return order
