"""The folder of a run: made exclusively, named by time and matrix, found again through runs/latest."""

import os
from datetime import datetime
from pathlib import Path

from moebench.errors import UsageError

RUNS = Path("runs")


def create_run_folder(wanted: Path | None, matrix: str) -> Path:
    """A new folder: `wanted`, or runs/<time>-<matrix>; with -2, -3, ... behind it if that exists.

    Only its owner may write to it. Raises UsageError where it cannot be made.
    """
    base = wanted or RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{matrix}"
    number = 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o755)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"--out {base}: the run folder cannot be made: {error.strerror}.") from error
        else:
            return folder.resolve()


def point_latest_to(run: Path) -> None:
    """Make runs/latest a relative link to the run. A folder that cannot hold one is no reason to fail."""
    temporary = RUNS / f".latest-{os.getpid()}"
    try:
        RUNS.mkdir(exist_ok=True)
        temporary.symlink_to(os.path.relpath(run, RUNS.resolve()))
        temporary.replace(RUNS / "latest")
    except OSError:
        temporary.unlink(missing_ok=True)
