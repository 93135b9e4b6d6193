"""What was planned and is not in the table, and why; equal reasons are told once."""

import re
from collections import Counter

from rich.console import Console

from moebench.reduce.schema import RejectedCase, Report
from moebench.show.layout import paragraph, title
from moebench.show.text import clean, counted, some
from moebench.status import Status

MESSAGE_LIMIT = 400
LOG_LINES = 6
"""Of a log, the last ones: the report has more."""

STYLES = {Status.REJECTED: "red", Status.FAILED: "red", Status.NOT_RUN: "yellow", Status.UNSUPPORTED: "dim"}


def counts(report: Report) -> str:
    """`55 of 60 planned cases accepted: 3 failed, 2 unsupported`."""
    planned = len(report.cases) + len(report.rejected)
    by_status = Counter(entry.status for entry in report.rejected)
    others = ", ".join(f"{by_status[status]} {status}" for status in STYLES if by_status[status])
    said = f"{len(report.cases)} of {counted(planned, 'planned case')} accepted"
    return f"{said}: {others}" if others else said


def print_problems(report: Report, console: Console) -> None:
    """Cases that are rejected, failed, not run or unsupported, by reason, the worst first."""
    if not report.rejected:
        return
    title(console, "Not in the tables")
    groups: dict[tuple[Status, str, str], list[RejectedCase]] = {}
    for entry in report.rejected:
        key = (entry.status, str(entry.reason or ""), _pattern(entry.message or ""))
        groups.setdefault(key, []).append(entry)
    order = list(STYLES)
    for (status, reason, _), entries in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        what = f"{status}, {reason}" if reason else str(status)
        message = shortened(entries[0].message or "no reason was recorded")
        some_differ = "; figures of the first" if len({entry.message for entry in entries}) > 1 else ""
        paragraph(
            console,
            f"{what}, {counted(len(entries), 'case')}{some_differ}: {message}",
            style=STYLES[status],
        )
        paragraph(console, some(entry.id for entry in entries), indent=2, style="dim")
        for line in (entries[0].log or "").splitlines()[-LOG_LINES:]:
            paragraph(console, f"| {shortened(line)}", indent=4, style="dim")
    console.print()


def _pattern(message: str) -> str:
    """A message without its figures, so that messages of one kind group."""
    return re.sub(r"\d[\d.,]*", "#", message)


def shortened(message: str) -> str:
    """A message as one printable line of bounded length; the report has all of it."""
    message = clean(" ".join(message.split()))
    return message if len(message) <= MESSAGE_LIMIT else message[:MESSAGE_LIMIT] + " ..."
