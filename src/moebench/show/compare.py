"""What `compare` prints: case by case, what may have caused it, and what was found."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from moebench.reduce.changes import MetricChange
from moebench.reduce.compare import CaseComparison, Finding, NotCompared, ReportComparison
from moebench.reduce.environments import Difference
from moebench.reduce.schema import Report
from moebench.show.derived import group_name, variant_name
from moebench.show.layout import Cell, Column, Section, paragraph, print_sections, title
from moebench.show.problems import counts, shortened
from moebench.show.text import ABSENT, counted, figure, some

STYLES = {
    Finding.REGRESSION: "red",
    Finding.LOST: "red",
    Finding.CANNOT_SAY: "yellow",
    Finding.FINE: "green",
}

COLUMNS = [
    Column("A ms", 2),
    Column("B ms", 1),
    Column("B / A", 0),
    Column("interval", 0, "left"),
    Column("finding", 0, "left"),
    Column("level", 5),
    Column("p", 4),
    Column("windows\nA, B", 6),
    Column("unstable", 7, "left"),
]

MOST_CHANGES = 5
"""Of each metric that are told one by one."""


def print_comparison(found: ReportComparison, reports: Sequence[tuple[Path, Report]], console: Console) -> None:
    """Table, what was not compared, environment, other changes, and at the end the findings with their cases."""
    for side, (path, report) in zip("AB", reports, strict=True):
        meta = report.meta
        where = ", ".join(part for part in (meta.hardware, meta.reportDate) if part)
        paragraph(console, f"{side}  {path}" + (f" ({where})" if where else ""), style="bold")
        paragraph(console, counts(report), indent=3)
    console.print()
    _print_table(found.compared, console)
    _print_unmatched(found, console)
    _print_environments(found, console)
    _print_changes(found.changes, console)
    for note in notes(found):
        paragraph(console, note, style="dim")
    _print_findings(found, console)


def _print_table(compared: Iterable[CaseComparison], console: Console) -> None:
    groups: dict[str, dict[str, list[CaseComparison]]] = {}
    for one in compared:
        groups.setdefault(group_name(one.new), {}).setdefault(variant_name(one.new), []).append(one)
    sections = []
    for group, variants in groups.items():
        rows: list[list[Cell]] = []
        for variant, cases in variants.items():
            rows.append([variant])
            rows += [_cells(one) for one in cases]
        sections.append(Section(group, rows))
    print_sections(console, COLUMNS, sections)


def _cells(one: CaseComparison) -> list[Cell]:
    style = STYLES[one.finding]
    return [
        f"  {one.new.backend} {one.new.pipeline}",
        figure(one.old.iterationMS),
        figure(one.new.iterationMS),
        Text(figure(one.ratio), style),
        interval_text(one),
        Text(str(one.finding), style),
        f"{one.interval.level:.1%}" if one.interval else ABSENT,
        ABSENT if one.p_value is None else f"{one.p_value:.2g}",
        f"{len(one.old.windowMS or ())}, {len(one.new.windowMS or ())}",
        "; ".join(one.unstable),
    ]


def interval_text(one: CaseComparison) -> str:
    return f"[{figure(one.interval.low)}, {figure(one.interval.high)}]" if one.interval else ABSENT


def _print_unmatched(found: ReportComparison, console: Console) -> None:
    lists = {
        "only in A, since B did not plan them": found.only_old,
        "only in B": found.only_new,
        "accepted in B, and not in A": found.regained,
    }
    for what, ids in lists.items():
        if ids:
            paragraph(console, f"{what}, {counted(len(ids), 'case')}: {some(ids)}", style="dim")


def _print_environments(found: ReportComparison, console: Console) -> None:
    title(console, "Environment")
    differing = found.environments.differences
    parts = {
        "may move a time": [one for one in differing if one.matters],
        "does not": [one for one in differing if not one.matters],
    }
    for what, differences in parts.items():
        lines = [difference_text(one) for one in differences] or ["no difference"]
        paragraph(console, f"{what}:")
        for line in lines:
            paragraph(console, line, indent=2)
    for line in assumptions(found):
        paragraph(console, line, style="dim")
    console.print()


def difference_text(one: Difference) -> str:
    """`torch: 2.11.0 -> 2.13.0 (12 cases)`."""
    return f"{one.key}: {shortened(one.old)} -> {shortened(one.new)} ({counted(one.cases, 'case')})"


def assumptions(found: ReportComparison) -> list[str]:
    """What could not be compared, since a report does not say it."""
    lines = [f"{side} does not record {name}: taken as equal" for name, side in found.assumed.items()]
    for side, keys in (("A", found.environments.unrecorded_old), ("B", found.environments.unrecorded_new)):
        if keys:
            lines.append(f"{side} does not record {some(keys, at_most=8)}")
    return lines


def _print_changes(changes: Sequence[MetricChange], console: Console) -> None:
    if not changes:
        return
    title(console, "Other changes")
    for heading, lines in changes_by_metric(changes).items():
        paragraph(console, heading)
        for line in lines:
            paragraph(console, line, indent=2)
    console.print()


def changes_by_metric(changes: Sequence[MetricChange]) -> dict[str, list[str]]:
    """The largest changes of each metric, under a heading that counts them."""
    by_metric: dict[str, list[MetricChange]] = {}
    for change in changes:
        by_metric.setdefault(change.metric, []).append(change)
    return {
        f"{metric}, {counted(len(ones), 'case')}": _largest(ones) for metric, ones in by_metric.items()
    }


def _largest(changes: Sequence[MetricChange]) -> list[str]:
    def size(change: MetricChange) -> float:
        return float("inf") if change.change is None else abs(change.change)

    ordered = sorted(changes, key=size, reverse=True)
    lines = [
        f"{figure(one.old)} -> {figure(one.new)}"
        + (f" ({one.change:+.1%})" if one.change is not None else "")
        + f" {one.id}"
        for one in ordered[:MOST_CHANGES]
    ]
    return lines + ([f"and {len(ordered) - MOST_CHANGES} more"] if len(ordered) > MOST_CHANGES else [])


def notes(found: ReportComparison) -> list[str]:
    """What the figures mean, and what they do not show."""
    lines = []
    levels = sorted(one.interval.level for one in found.compared if one.interval)
    if levels:
        stated = " to ".join(dict.fromkeys((f"{levels[0]:.1%}", f"{levels[-1]:.1%}")))
        lines.append(
            "B / A: median ratio of all pairs of windows (Hodges-Lehmann), which outliers can part from the ratio of the "
            f"means; exact interval of level {stated}, of these two runs."
        )
        lines.append(
            f"p: {counted(found.claims, 'ratio')} above the limit, adjusted for making so many claims at once "
            "(Hochberg's form of Holm's method). Passing a report needs every case, and no adjustment."
        )
    lines.append(
        "Separate runs: whatever else changed between them (clocks, heat, neighbours) is part of every ratio. Only a "
        "paired sweep takes it out."
    )
    return lines


def _print_findings(found: ReportComparison, console: Console) -> None:
    console.print()
    for finding in (Finding.FINE, Finding.CANNOT_SAY, Finding.LOST, Finding.REGRESSION):
        cases = found.having(finding)
        if not cases:
            continue
        paragraph(console, f"{finding}, {counted(len(cases), 'case')}", style=STYLES[finding])
        if finding is Finding.FINE:
            continue
        for why, ids in grouped(cases).items():
            paragraph(console, f"{why}:" if why else "", indent=2)
            for case_id in ids:
                paragraph(console, case_id, indent=4)
    paragraph(console, conclusion(found), style="bold")


def grouped(cases: Iterable[CaseComparison | NotCompared]) -> dict[str, list[str]]:
    """What to say of cases, and their names, by reason."""
    groups: dict[str, list[str]] = {}
    for one in cases:
        groups.setdefault(shortened(one.why), []).append(one.id)
    return groups


def conclusion(found: ReportComparison) -> str:
    """One line for the whole comparison."""
    limit = f"more than {found.max_regression:.4g}"
    return limit
