"""One sweep, or training of arms, at a time in a run folder.

The lock is held by the kernel, so a killed owner leaves none behind; the torchrun of a launch holds it too, so it lasts
until the last rank is gone.
"""

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moebench.errors import UsageError
from moebench.launch.leftovers import end_leftovers

RANKS_END_S = 45.0
"""How long ranks of a killed sweep may take to end: torchrun waits 30 s before it kills one."""
KILLED_S = 5.0
POLL_S = 0.1


@contextmanager
def locked(run: Path, wait_s: float = RANKS_END_S) -> Iterator[int]:
    """Hold the run folder; yields the descriptor that a launch hands to its torchrun.

    Raises UsageError when another sweep holds it, at once if its process lives, else after `wait_s`; and where the
    folder cannot be written.
    """
    path = run / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UsageError(f"{run}: the run folder cannot be written: {error.strerror}.") from error
    try:
        _take(descriptor, run, wait_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {platform.node()}".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, run: Path, wait_s: float) -> None:
    """What is left of a killed sweep is waited for, and then ended: a stopped torchrun ends nothing by itself."""
    end, ended = time.monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            owner, host = _owner(descriptor)
            here = host == platform.node()
            if here and not _lives(owner) and time.monotonic() > end and not ended:
                end_leftovers(run.resolve())
                end, ended = time.monotonic() + KILLED_S, True
            if not here or _lives(owner) or time.monotonic() > end:
                what = "runs" if not here or _lives(owner) else "was killed, and its ranks have not ended yet"
                raise UsageError(
                    f"{run}: another run has this folder: process {owner} on {host} {what}. Wait until it has ended."
                ) from error
        except OSError as error:
            raise UsageError(
                f"{run}: the run folder cannot be locked: {error.strerror}. Put it on a file system with locks (--out)."
            ) from error
        time.sleep(POLL_S)


def _owner(descriptor: int) -> tuple[int, str]:
    number, _, host = os.pread(descriptor, 300, 0).decode("utf-8", errors="replace").partition(" ")
    return int(number) if number.isdecimal() else 0, host or platform.node()


def _lives(pid: int) -> bool:
    """Also while its owner has not yet written its number (0)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
