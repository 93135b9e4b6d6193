"""Processes of a run that outlived their torchrun: whatever a rank started, in whatever session it is."""

import contextlib
import os
import signal
from pathlib import Path

MARK = "MOEBENCH_RUN"
"""In the environment of every process of a launch: the run folder."""


def end_leftovers(run: Path, proc: Path = Path("/proc")) -> list[int]:
    """Kill this user's processes that carry the run's mark; their ids. Only the holder of the run's lock may."""
    mark = f"{MARK}={run}".encode()
    ended = []
    for entry in proc.glob("[1-9]*"):
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:
            continue
        with contextlib.suppress(OSError):
            os.kill(int(entry.name), signal.SIGKILL)
            ended.append(int(entry.name))
    return ended
