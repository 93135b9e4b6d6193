"""The folder of a run: made exclusively, named by time and matrix, found again through runs/latest."""

import os
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path

from moebench.errors import UsageError

RUNS = Path("runs")


def create_run_folder(wanted: Path | None, matrix: str) -> Path:
    """A new folder: `wanted`, or runs/<time>-<matrix>; with -2, -3, ... behind it if that exists.

    Only its owner may write to it. Raises UsageError where it cannot be made.
    """
    base = wanted or RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{matrix}"
    if wanted is not None:
        base = Path(os.path.abspath(wanted))
        if not base.name or str(wanted) in ("", "."):
            raise UsageError(f"--out {str(wanted)!r}: give the name of a new folder for this run, such as runs/monday.")
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir(mode=0o755)
                return folder.resolve()
    except OSError as error:
        raise UsageError(f"--out {base}: the run folder cannot be made: {error.strerror}.") from error
    raise AssertionError("unreachable: the numbers are endless")


def point_latest_to(run: Path) -> None:
    """Make runs/latest a relative link to the run. A folder that cannot hold one is no reason to fail."""
    temporary = RUNS / f".latest-{os.getpid()}"
    try:
        RUNS.mkdir(exist_ok=True)
        temporary.symlink_to(os.path.relpath(run, RUNS.resolve()))
        temporary.replace(RUNS / "latest")
    except OSError:
        with suppress(OSError):
            temporary.unlink()
