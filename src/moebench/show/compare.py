"""What `compare` prints: case by case, what may have caused it, and what was found."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from moebench.reduce.changes import MetricChange
from moebench.reduce.compare import ReportComparison
from moebench.reduce.environments import Difference
from moebench.reduce.regression import CaseComparison, Finding
from moebench.reduce.schema import Report
from moebench.show.derived import group_name, variant_name
from moebench.show.layout import Cell, Column, Section, paragraph, print_sections, title
from moebench.show.problems import counts, shortened
from moebench.show.text import ABSENT, counted, figure, some

STYLES = {
    Finding.REGRESSION: "red",
    Finding.LOST: "red",
    Finding.UNDECIDED: "yellow",
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
        Text(ratio_text(one.ratio), style),
        interval_text(one),
        Text(str(one.finding), style),
        f"{one.interval.level:.1%}" if one.interval else ABSENT,
        ABSENT if one.p_value is None else f"{one.p_value:.2g}",
        f"{len(one.old.windowMS or ())}, {len(one.new.windowMS or ())}",
        "; ".join(one.unstable),
    ]


def ratio_text(ratio: float) -> str:
    return f"{ratio:.3f}" if 0.01 < ratio < 1000 else f"{ratio:.3g}"


def interval_text(one: CaseComparison) -> str:
    return f"[{ratio_text(one.interval.low)}, {ratio_text(one.interval.high)}]" if one.interval else ABSENT


def _print_unmatched(found: ReportComparison, console: Console) -> None:
    lists = {
        "only in A, since B did not plan them": found.only_old,
        "only in B": found.only_new,
        "accepted in B, and not in A": found.regained,
    }
    for what, ids in lists.items():
        if ids:
            paragraph(console, f"{what}, {counted(len(ids), 'case')}: {some(ids)}", style="dim")
    if any(lists.values()):
        console.print()


def _print_environments(found: ReportComparison, console: Console) -> None:
    differing = found.environments.differences
    title(console, "Differences that may move a time")
    for line in [difference_text(one) for one in differing if one.matters] or ["none in what both reports record"]:
        paragraph(console, line, indent=2)
    for line in [*others(found), *assumptions(found)]:
        paragraph(console, line, style="dim")
    console.print()


def others(found: ReportComparison) -> list[str]:
    """Differences that move no time."""
    return [f"no cause: {difference_text(one)}" for one in found.environments.differences if not one.matters]


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
    return {f"{metric}, {counted(len(ones), 'case')}": _largest(ones) for metric, ones in by_metric.items()}


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
            "B / A: median ratio of all pairs of windows (Hodges-Lehmann), from which outliers can part that of the "
            f"means; exact interval of level {stated} for these two runs."
        )
    if found.claims:
        lines.append(
            f"p: of {counted(found.claims, 'ratio')} above {limit_text(found)}, adjusted for making so many claims at "
            "once (Hochberg's form of Holm's method). A pass needs every case, so it needs no adjustment."
        )
    by_ratio = sum(one.interval is None and one.finding is not Finding.UNDECIDED for one in found.compared)
    if by_ratio:
        lines.append(
            f"No interval, {counted(by_ratio, 'case')}: without samples (windowMS) the ratio of the means decided "
            "alone, and how far it is off by chance is not known."
        )
    lines.append(
        "Separate runs: what else changed between them (clocks, heat, neighbours) is part of every ratio; windows of "
        "one run do not show it."
    )
    if any(one.finding is Finding.UNDECIDED for one in found.compared):
        lines.append("More windows say more: `windows` in the matrix's [measure], in both runs.")
    return lines


def limit_text(found: ReportComparison) -> str:
    """`1.03`: the largest B / A that is no regression."""
    return f"{1 + found.max_regression:.6g}"


def percent(found: ReportComparison) -> str:
    return f"{100 * found.max_regression:.6g}%"


def _print_findings(found: ReportComparison, console: Console) -> None:
    console.print()
    for finding in (Finding.UNDECIDED, Finding.LOST, Finding.REGRESSION):
        for line in told(found, finding):
            paragraph(console, line, style=STYLES[finding])
    paragraph(console, conclusion(found), style=f"bold {STYLES[worst(found)]}")


def told(found: ReportComparison, finding: Finding) -> list[str]:
    """A line for each reason, with the cases; of those that allow no claim, some."""
    if finding is Finding.REGRESSION:
        return [
            f"{finding}, {ratio_text(one.ratio)} {one.why or interval_text(one)}: {one.id}"
            for one in found.compared
            if one.finding is finding
        ]
    reasons: dict[str, list[str]] = {}
    for one in found.having(finding):
        reasons.setdefault(shortened(one.why), []).append(one.id)
    at_most = 3 if finding is Finding.UNDECIDED else len(found.not_compared)
    return [f"{finding}, {counted(len(ids), 'case')}, {why}: {some(ids, at_most)}" for why, ids in reasons.items()]


def worst(found: ReportComparison) -> Finding:
    """What decides the exit status."""
    return next((finding for finding in Finding if found.having(finding)), Finding.UNDECIDED)


def conclusion(found: ReportComparison) -> str:
    """`2 regressions beyond 3%, 1 lost, 3 undecided, 30 without regression`."""
    numbers = {finding: len(found.having(finding)) for finding in Finding}
    parts = [f"{counted(numbers[Finding.REGRESSION], 'regression')} beyond {percent(found)}"]
    for finding in (Finding.LOST, Finding.UNDECIDED):
        parts += [f"{numbers[finding]} {finding}"] if numbers[finding] else []
    return ", ".join([*parts, f"{numbers[Finding.FINE]} without regression"])
