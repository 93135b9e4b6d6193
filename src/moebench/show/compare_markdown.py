"""A comparison as Markdown for a pull request: findings in sight, long tables folded, of bounded length."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from moebench.reduce.compare import ReportComparison
from moebench.reduce.regression import CaseComparison, Finding
from moebench.reduce.schema import Report
from moebench.show.compare import (
    assumptions,
    changes_by_metric,
    conclusion,
    difference_text,
    interval_text,
    limit_text,
    notes,
    others,
    ratio_text,
    told,
)
from moebench.show.problems import counts
from moebench.show.text import clean, figure

MOST_REGRESSIONS, MOST_ROWS = 25, 150
"""Rows of the table in sight, and of the one of all cases: a comment on GitHub holds 65,536 characters."""

MOST_LINES = 20
"""Of a list."""

MOST_CHARACTERS = 500
"""Of a text of a report."""

_HEAD = "| case | A ms | B ms | B / A | interval | finding |\n|---|--:|--:|--:|---|---|"


def as_markdown(found: ReportComparison, reports: Sequence[tuple[Path, Report]]) -> str:
    """Heading, regressions, lost cases and what allows no claim; then all cases, environment and notes, folded."""
    regressions = [one for one in found.compared if one.finding is Finding.REGRESSION]
    parts = [f"### moebench: {conclusion(found)}"]
    for side, (path, report) in zip("AB", reports, strict=True):
        meta = report.meta
        where = ", ".join(_code(part) for part in (str(path), meta.hardware, meta.reportDate) if part)
        parts.append(f"**{side}** {where}: {counts(report)}")
    parts.append(f"A regression is a B / A above {limit_text(found)} with its whole interval.")
    if regressions:
        parts.append(_table(regressions, MOST_REGRESSIONS))
    parts += _list([*told(found, Finding.LOST), *told(found, Finding.UNDECIDED)])
    parts.append(_folded(f"All {len(found.compared)} compared cases", [_table(found.compared, MOST_ROWS)]))
    matters = [difference_text(one) for one in found.environments.differences if one.matters]
    parts.append(
        _folded(
            f"Environment: {len(matters) or 'no'} difference{'s' if len(matters) != 1 else ''} that may move a time",
            _list([*matters, *others(found), *assumptions(found)]),
        )
    )
    if found.changes:
        by_metric = changes_by_metric(found.changes)
        lines = [f"{heading}: {'; '.join(lines)}" for heading, lines in by_metric.items()]
        parts.append(_folded(f"Other changes: {', '.join(by_metric)}", _list(lines)))
    parts += [f"<sub>{note}</sub>" for note in notes(found)]
    return "\n\n".join(parts) + "\n"


def _table(cases: Sequence[CaseComparison], at_most: int) -> str:
    worst_first = sorted(cases, key=lambda one: list(Finding).index(one.finding))
    more = len(cases) - at_most
    rest = [f"| and {more} more, which `moebench compare --json` has | | | | | |"] if more > 0 else []
    return "\n".join([_HEAD, *(_row(one) for one in worst_first[:at_most]), *rest])


def _row(one: CaseComparison) -> str:
    unstable = [what.partition(":")[0] for what in one.unstable]
    cells = (
        _code(one.id),
        figure(one.old.iterationMS),
        figure(one.new.iterationMS),
        ratio_text(one.ratio),
        interval_text(one),
        "; ".join((one.finding, *unstable)),
    )
    return f"| {' | '.join(cells)} |"


def _folded(summary: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"<details><summary>{summary}</summary>", *parts, "</details>"])


def _list(lines: Iterable[str]) -> list[str]:
    """One list, or nothing."""
    items = [f"- {_code(line)}" for line in lines]
    more = [f"- and {len(items) - MOST_LINES} more"] if len(items) > MOST_LINES else []
    return ["\n".join([*items[:MOST_LINES], *more])] if items else []


def _code(text: str) -> str:
    """Text of a report between backquotes, where Markdown, HTML and mentions have no meaning."""
    shown = clean(text).replace("`", "'").replace("|", "/")
    return f"`{shown if len(shown) <= MOST_CHARACTERS else shown[:MOST_CHARACTERS] + ' ...'}`"
