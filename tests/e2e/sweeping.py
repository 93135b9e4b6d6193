"""`python -m moebench` as a user runs it: another process, another folder, nothing on a terminal."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARK = "SWEEP_OF_TEST"


@dataclass(frozen=True)
class Ended:
    """A command that has ended, and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


class Command:
    """A `moebench` command under way. Its mark is in the environment of every process that it starts."""

    def __init__(self, *arguments: object, folder: Path, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        env = {key: value for key, value in os.environ.items() if key not in ("TERM", "COLUMNS")}
        env |= {"PYTHONPATH": str(ROOT), MARK: self.mark} | environment
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moebench", *map(str, arguments)],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait(self, seconds: float = 300) -> Ended:
        try:
            stdout, stderr = self.process.communicate(timeout=seconds)
        finally:
            self.clean_up()
        return Ended(self.process.returncode, stdout, stderr)

    def processes(self, of: str = "") -> list[int]:
        """Living processes with this command's mark, whose command line has `of` in it."""
        return [pid for pid in _pids() if self._is_mine(pid) and of in _read(pid, "cmdline")]

    def _is_mine(self, pid: int) -> bool:
        return f"{MARK}={self.mark}" in _read(pid, "environ")

    def clean_up(self) -> None:
        """End what is left, so that a failed test leaves nothing behind."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def moebench(*arguments: object, folder: Path, seconds: float = 300, **environment: str) -> Ended:
    return Command(*arguments, folder=folder, **environment).wait(seconds)


def until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first value that is true; an AssertionError when none was in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = true()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def journal(run: Path) -> list[dict[str, Any]]:
    path = run / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "report.json").read_text(), parse_constant=_refuse)
    return loaded


def traces(run: Path, case_id: str) -> list[dict[str, Any]]:
    """All ranks' traces of the first attempt at a case."""
    paths = sorted((run / "traces" / case_id / "1").glob("rank-*.json"), key=lambda path: int(path.stem[5:]))
    return [json.loads(path.read_text(), parse_constant=_refuse) for path in paths]


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in JSON")


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def _read(pid: int, file: str) -> str:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
