"""What a paired sweep may claim: ratios with intervals and verdicts, and the A/A floor under them."""

from statistics import median

from rich.console import Console
from rich.text import Text

from moebench.reduce.comparisons import SAME_WITHIN, compare_groups
from moebench.reduce.schema import CaseRow, Comparison, Floor, Report
from moebench.reduce.verdict import Verdict, least_blocks
from moebench.show.derived import group_name, variant_name
from moebench.show.layout import Cell, Column, Section, paragraph, print_sections, title
from moebench.show.text import ABSENT, counted, ratio

STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "red", Verdict.SAME: "", Verdict.UNDECIDED: "yellow"}
COLUMNS = [
    Column("against", 0, "left"),
    Column("faster by", 0),
    Column("interval", 0, "left"),
    Column("verdict", 0, "left"),
    Column("blocks", 3),
    Column("p", 2),
    Column("A/A floor", 1),
]


def print_comparisons(report: Report, console: Console) -> None:
    """Nothing of a sweep that was not paired."""
    compared = compare_groups(report.cases)
    if not compared.comparisons:
        _print_floors(compared.floors, console)
        return
    rows_of = {row.id: row for row in report.cases}
    floor_of = {floor.group: floor for floor in compared.floors}
    title(console, f"{counted(len(compared.comparisons), 'paired comparison')}")
    sections: dict[str, list[list[Cell]]] = {}
    for comparison in compared.comparisons:
        case, baseline = rows_of[comparison.case], rows_of[comparison.baseline]
        rows = sections.setdefault(group_name(case), [])
        if [variant_name(case)] not in rows:
            rows.append([variant_name(case)])
        floor = floor_of.get(case.paired.group) if case.paired else None
        rows.append(_cells(comparison, case, baseline, floor))
    print_sections(console, COLUMNS, [Section(group, rows) for group, rows in sections.items()])
    _print_notes(compared.comparisons, compared.floors, console)
    groups = {row.paired.group for row in report.cases if row.paired}
    without = len(groups - floor_of.keys())
    if without:
        paragraph(
            console,
            f"{counted(without, 'job')} without an A/A floor: the case that took part twice was not accepted.",
            style="yellow",
        )
    if any(row.paired and row.paired.alternated == "executions" for row in report.cases):
        paragraph(
            console,
            "Some cases did not fit in memory together: each was set up anew for each of its windows.",
            style="yellow",
        )


def _cells(comparison: Comparison, case: CaseRow, baseline: CaseRow, floor: Floor | None) -> list[Cell]:
    return [
        f"  {case.backend} {case.pipeline}",
        f"{baseline.backend} {baseline.pipeline}",
        ratio(comparison.fasterBy),
        f"[{comparison.low:.3g}, {comparison.high:.3g}]" if comparison.adjustedPValue is not None else ABSENT,
        Text(comparison.verdict, style=STYLES.get(Verdict(comparison.verdict), "dim")),
        str(comparison.blocks),
        ABSENT if comparison.adjustedPValue is None else f"{comparison.adjustedPValue:.2g}",
        ABSENT
        if floor is None or floor.effect is None
        else f"{floor.effect:.1%}" + (" biased" if floor.biased else ""),
    ]


def _print_notes(comparisons: list[Comparison], floors: list[Floor], console: Console) -> None:
    claims = sum(comparison.adjustedPValue is not None for comparison in comparisons)
    levels = sorted({comparison.level for comparison in comparisons if comparison.adjustedPValue is not None})
    level = " to ".join(f"{value:.1%}" for value in dict.fromkeys(levels[:1] + levels[-1:]))
    interval = f"exact {level} interval" if level else "no interval from so few blocks"
    paragraph(
        console,
        f"faster by: baseline ms / case ms, median of block differences (Hodges-Lehmann), {interval}. p by "
        f"Holm for {counted(claims, 'claim')} at once; same: within {SAME_WITHIN:.0%}.",
        style="dim",
    )
    fewest = min(comparison.blocks for comparison in comparisons)
    if claims and fewest < least_blocks(claims):
        paragraph(
            console,
            f"{fewest} blocks cannot carry {counted(claims, 'claim')} at once: {least_blocks(claims)} can (--blocks).",
            style="yellow",
        )
    _print_floors(floors, console)


def _print_floors(floors: list[Floor], console: Console) -> None:
    effects = sorted(floor.effect for floor in floors if floor.effect is not None)
    if effects:
        biased = sum(bool(floor.biased) for floor in floors)
        paragraph(
            console,
            f"A/A, a case against itself in each of {counted(len(effects), 'job')}: the smallest effect that could be "
            f"shown was about {median(effects):.1%}"
            + (f" ({effects[0]:.1%} to {effects[-1]:.1%})" if len(effects) > 1 else "")
            + (f"; {counted(biased, 'job')} saw one where there is none." if biased else "."),
            style="dim",
        )
