"""Kill the orchestrator, torchrun or a rank of a small sweep at a random moment, resume, and compare the report with
an undisturbed one: `python -m tests.launch.kills --kills 30`."""

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.sweeping import Command, journal, report, until

TARGETS = ("orchestrator", "torchrun", "rank")
SWEEP = ("--ep", "2", "--precision", "bf16", "-k", "*-packing-A-*", "-k", "*-inference-*-i2-*", "--attempts", "5")
GONE_S = 60


def run(folder: Path, *arguments: str) -> Command:
    return Command("sweep", *arguments, folder=folder)


def essence(folder: Path) -> dict[str, Any]:
    """What must not depend on kills: every planned case's status, routing, capacity and counted bytes."""
    found = report(folder)
    ends: dict[str, Any] = {row["id"]: (row["status"], row["reason"]) for row in found["rejected"]}
    for row in found["cases"]:
        ends[row["id"]] = ("accepted", row["routing"], row.get("capacity"), row["txBytesByKind"], row["logicalTXBytes"])
    return ends | {"pairs": [found["pairs"], found["allPipelinePairs"]]}


def undisturbed(folder: Path) -> tuple[dict[str, Any], dict[int, float]]:
    """The essence of a sweep that nobody kills, and its seconds: until its first case began, and from there on."""
    command = run(folder, *SWEEP, "--out", "whole")
    planned, begun = (_lines(folder / "whole", lines) for lines in (1, 2))
    ended = command.wait()
    assert ended.code == 0, ended
    return essence(folder / "whole"), {1: begun - planned, 2: time.monotonic() - begun}


def killed(folder: Path, name: str, target: str, lines: int, after_s: float) -> dict[str, Any]:
    """The essence of a sweep of which one process was killed, so long after its journal had so many lines, and which
    was resumed until nothing was left to do."""
    command = run(folder, *SWEEP, "--out", name)
    end = _lines(folder / name, lines) + after_s
    while time.monotonic() < end and command.process.poll() is None:
        time.sleep(0.01)
    victims = {
        "orchestrator": [command.process.pid],
        "torchrun": command.processes("moebench.launch.agent"),
        "rank": command.processes("moebench.rank"),
    }[target]
    if victims and command.process.poll() is None:
        os.kill(random.choice(victims), signal.SIGKILL)
    if target == "orchestrator":
        until(lambda: not command.processes(), GONE_S, "nothing outlives the orchestrator")
        command.process.communicate()
    else:
        command.wait()
    again = run(folder, "--resume", name)
    ended = again.wait()
    assert ended.code == 0, ended
    for one in (command, again):
        assert one.processes() == []
    return essence(folder / name)


def _lines(folder: Path, lines: int) -> float:
    """When the journal had so many lines: one once the sweep is planned, two once its first case has begun."""
    until(lambda: len(journal(folder)) >= lines, 60, f"the journal has {lines} lines")
    return time.monotonic()


def draw(kill: int, seconds: dict[int, float]) -> tuple[str, int, float]:
    """Target, and moment as lines of the journal and seconds after them: one kill of three before the first case."""
    lines = 1 if kill // len(TARGETS) % 3 == 2 else 2
    return TARGETS[kill % len(TARGETS)], lines, random.uniform(0, seconds[lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    random.seed(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, seconds = undisturbed(folder)
        print(f"undisturbed: {len(whole) - 1} cases, {sum(seconds.values()):.1f} s; seed {asked.seed}", flush=True)
        for kill in range(asked.kills):
            target, lines, after_s = draw(kill, seconds)
            same = killed(folder, f"kill-{kill}", target, lines, after_s) == whole
            where = "the plan" if lines == 1 else "the first case began"
            print(f"{kill + 1}/{asked.kills} {target} {after_s:.2f} s after {where}: {'same' if same else 'DIFFERS'}")
            assert same


if __name__ == "__main__":
    main()
