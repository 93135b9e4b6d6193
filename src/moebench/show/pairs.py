"""The table of pairs, their geometric means, and what has no pair."""

from rich.console import Console

from moebench.reduce.pairs import (
    BASELINE,
    DIST,
    FASTER_BY,
    MOK,
    Match,
    Mean,
    Unpaired,
    geometric_means,
    pairing,
    torch_ratios,
)
from moebench.reduce.schema import Report
from moebench.show.derived import group_name, variant_name
from moebench.show.layout import Cell, Column, Section, paragraph, print_sections, title
from moebench.show.marks import marks
from moebench.show.text import ABSENT, clean, counted, figure, ratio, some

WIDE = 100


def print_pair_table(report: Report, console: Console) -> None:
    """One row a pair: who is faster, by how much, and how far both are from the torch baseline."""
    found, ratios = pairing(report), torch_ratios(report)
    narrow = bool(ratios) and console.width < WIDE
    pipelines = len(found.all_pipeline_pairs)
    title(console, f"{counted(len(found.matches), 'pair')} ({counted(pipelines, 'pipeline pair')})")
    groups: dict[str, list[list[Cell]]] = {}
    for match in found.matches:
        groups.setdefault(group_name(match.mok), []).append(_cells(match, ratios, narrow))
    print_sections(console, _columns(narrow), [Section(group, rows) for group, rows in groups.items()])
    if found.matches:
        says = f"{FASTER_BY}: {MOK} ms / {DIST} ms. Times are of the slowest rank."
        several = any(len(match.all_dist) > 1 for match in found.matches)
        paragraph(
            console,
            says + (f" Of several {DIST} pipelines the fastest counts." if several else ""),
            style="dim",
        )
    _print_unpaired(found.unpaired, console)


def _columns(narrow: bool) -> list[Column]:
    return [
        Column(f"{DIST}\npipeline", 0, "left"),
        Column("best\nof" if narrow else "pipelines", 2, "left"),
        Column(f"{DIST}\nms", 1),
        Column(f"{MOK}\nms", 1),
        Column(f"{DIST}\nfaster by", 0),
        Column(f"{DIST}\nvs {BASELINE}", 4),
        Column(f"{MOK} vs\n{BASELINE}", 5),
        Column("mark", 3, "left"),
        Column("other pipelines", 6, "left"),
    ]


def _cells(match: Match, ratios: dict[str, float], narrow: bool) -> list[Cell]:
    of = len(match.all_dist)
    note = "" if of == 1 else str(of) if narrow else f"best of {of} pipelines"
    others = [row for row in match.all_dist if row is not match.dist]
    return [
        variant_name(match.mok),
        match.dist.pipeline,
        note,
        figure(match.dist.iterationMS),
        figure(match.mok.iterationMS),
        ratio(match.speedup),
        ratio(ratios.get(match.dist.id)),
        ratio(ratios.get(match.mok.id)),
        marks(match.dist, match.mok),
        ", ".join(f"{row.pipeline} {ratio(match.mok.iterationMS / row.iterationMS)}" for row in others),
    ]


def print_means(report: Report, console: Console) -> None:
    """Geometric means by mode and precision, with the number of workloads in brackets."""
    means = geometric_means(report)
    if not means:
        return
    comparisons = list(dict.fromkeys(mean.comparison for mean in means))
    by_group: dict[str, dict[str, Mean]] = {}
    for mean in means:
        by_group.setdefault(f"{mean.mode}-{mean.precision}", {})[mean.comparison] = mean
    rows: list[list[Cell]] = [
        [group, *(_mean_cell(found.get(comparison)) for comparison in comparisons)] for group, found in by_group.items()
    ]
    columns = [Column(_two_lines(comparison), keep) for keep, comparison in enumerate(comparisons)]
    console.print()
    print_sections(console, columns, [Section("geometric mean (workloads)", rows)])


def _two_lines(comparison: str) -> str:
    first, _, rest = clean(comparison).partition(" ")
    return f"{first}\n{rest}"


def _mean_cell(mean: Mean | None) -> Cell:
    if mean is None:
        return ABSENT
    return ratio(mean.ratio).append(f" ({mean.workloads})", "")


def _print_unpaired(unpaired: list[Unpaired], console: Console) -> None:
    reasons: dict[str, list[str]] = {}
    for entry in unpaired:
        reasons.setdefault(entry.reason, []).append(entry.row.id)
    for reason, ids in reasons.items():
        paragraph(console, f"unpaired, {counted(len(ids), 'case')}: {reason}", style="yellow")
        paragraph(console, some(ids), indent=2, style="dim")
