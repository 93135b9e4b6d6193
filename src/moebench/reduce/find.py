"""Which file is meant by a report, a run folder, or nothing at all."""

from pathlib import Path

from moebench.errors import UsageError


def report_path(given: Path) -> Path:
    """The report's file, given that file or a run folder. Raises UsageError for a folder without a report."""
    if not given.is_dir():
        return given
    path = given / "report.json"
    if path.is_file():
        return path
    if (given / "plan.json").is_file():
        raise UsageError(f"{given}: this run has no report.json yet. Make it with `moebench reduce {given}`.")
    raise UsageError(f"{given}: neither a report nor a run folder. Name a report JSON, or a folder under runs/.")


def latest_report(folder: Path) -> Path:
    """The report of runs/latest under a folder, else the newest one of any run there.

    Raises UsageError where there is none.
    """
    latest = folder / "runs" / "latest" / "report.json"
    if latest.is_file():
        return latest
    reports = [path for path in (folder / "runs").glob("*/report.json") if path.is_file()]
    if not reports:
        raise UsageError(
            f"{folder / 'runs'}: there is no report. Run `moebench sweep` here first, or name one: "
            "`moebench show REPORT`."
        )
    return max(reports, key=lambda path: (path.stat().st_mtime_ns, path))
