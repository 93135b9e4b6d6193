"""moebench: which expert-parallel MoE implementation is faster on your hardware, by how much and why."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from moebench.reduce.schema import Report

__version__ = "0.1.0"
__all__ = ["__version__", "cases_frame", "load_report", "pairs_frame"]


def load_report(path: "Path | str") -> "Report":
    """The report in a JSON file; attributes are named like its keys, as in `report.cases[0].iterationMS`.

    Raises moebench.errors.UsageError for a file that is no report, saying what is wrong with it.
    """
    from moebench.reduce.load import load_report as load

    return load(path)


def cases_frame(report: "Report") -> "pd.DataFrame":
    """One row for each accepted case, in report order; columns: `moebench.show.frames.CASE_DTYPES`."""
    from moebench.show.frames import cases_frame as frame

    return frame(report)


def pairs_frame(report: "Report") -> "pd.DataFrame":
    """One row for each pair, sorted by mok id; columns: `moebench.show.frames.PAIR_DTYPES`."""
    from moebench.show.frames import pairs_frame as frame

    return frame(report)
