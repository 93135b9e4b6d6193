"""Which rank holds the others up when a launch hangs: read off the Python stacks that its ranks dumped."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DUMP_BYTES = 2**18
SHOWN_FRAMES = 6
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$')
_COLLECTIVES = ("/torch/distributed/", "/moebench/rank/exchange.py")
_UNTOLD = ("wrapper", "wait")
"""Frames of a collective that do not say which one it is."""
_INSIDE_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")


@dataclass(frozen=True)
class Stack:
    """The frames of a rank's main thread, innermost first: (file, line, function)."""

    frames: list[tuple[str, int, str]]

    @property
    def collective(self) -> str | None:
        """The collective in which it waits."""
        inside = [name for file, _, name in self.frames if any(part in file for part in _COLLECTIVES)]
        told = [name for name in inside if name not in _UNTOLD]
        return told[0] if told else "a collective" if inside else None

    @property
    def innermost(self) -> str:
        """Its innermost frames, one a line."""
        return "\n".join(f'File "{file}", line {line} in {name}' for file, line, name in self.frames[:SHOWN_FRAMES])

    @property
    def place(self) -> str:
        """Its innermost frame outside libraries."""
        own = [frame for frame in self.frames if not any(part in frame[0] for part in _INSIDE_LIBRARIES)]
        file, line, function = (own or self.frames)[0]
        return f"{Path(file).name}:{line} in {function}"


def read_stack(log: Path) -> Stack | None:
    """The last dump in a rank's log; none where the rank wrote none, as a stopped process does."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - DUMP_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    _, found, dump = text.rpartition("Current thread ")
    frames = []
    for line in dump.splitlines()[1:] if found else []:
        frame = _FRAME.match(line)
        if frame is None:
            break
        frames.append((frame["file"], int(frame["line"]), frame["function"]))
    return Stack(frames) if frames else None


def who_hangs(stacks: Mapping[int, Stack | None]) -> tuple[list[int], str]:
    """The ranks that hold the others up, and in words what each rank does.

    A rank without a stack does not answer; one outside a collective keeps those inside waiting. Where all wait, in
    different collectives or in the same one, nobody is named.
    """
    silent = [rank for rank, stack in stacks.items() if stack is None]
    if silent:
        return silent, f"{_ranks(silent)} did not answer"
    known = {rank: stack for rank, stack in stacks.items() if stack is not None}
    busy = {rank: stack for rank, stack in known.items() if stack.collective is None}
    waiting: dict[str, list[int]] = {}
    for rank, stack in known.items():
        if stack.collective is not None:
            waiting.setdefault(stack.collective, []).append(rank)
    parts = [f"rank {rank} was at {stack.place}" for rank, stack in busy.items()]
    parts += [f"{_ranks(ranks)} waited in {name}" for name, ranks in waiting.items()]
    return (list(busy) if waiting else []), "; ".join(parts)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
