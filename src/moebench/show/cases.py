"""The table of accepted cases, by workload."""

from rich.console import Console

from moebench.reduce.pairs import torch_ratios
from moebench.reduce.schema import CaseRow, DistMoeCapacity, MokCapacity, Report
from moebench.show.derived import group_name, tokens_per_s, variant_name
from moebench.show.layout import Cell, Column, Section, print_sections
from moebench.show.marks import marks
from moebench.show.text import ABSENT, figure, ratio, short

COLUMNS = [
    Column("ms", 0),
    Column("forward\nms", 6),
    Column("backward\nms", 6),
    Column("vs\ntorch", 5),
    Column("TFLOP/s", 1),
    Column("tokens\n/s", 2),
    Column("TX\nGB/s", 3),
    Column("RX\nGB/s", 4),
    Column("HBM GB/s\nmodeled", 8),
    Column("peak\nGiB", 3),
    Column("spread", 7),
    Column("floor\nms", 9),
    Column("mark", 0, "left"),
    Column("memory policy", 10, "left"),
]
"""Rates are per rank. `floor` is the fastest rank's time, `ms` the slowest's. In inference, forward is all of it."""


def print_cases(report: Report, console: Console) -> None:
    """Cases grouped by mode, ep and precision, then by workload, in report order inside a workload."""
    ratios = torch_ratios(report)
    groups: dict[str, dict[str, list[CaseRow]]] = {}
    for row in report.cases:
        groups.setdefault(group_name(row), {}).setdefault(variant_name(row), []).append(row)
    sections = []
    for group, variants in groups.items():
        cells: list[list[Cell]] = []
        for variant, rows in variants.items():
            cells.append([variant])
            cells += [_cells(report, row, ratios.get(row.id)) for row in rows]
        sections.append(Section(group, cells))
    print_sections(console, COLUMNS, sections)


def _cells(report: Report, row: CaseRow, vs_torch: float | None) -> list[Cell]:
    return [
        f"  {row.backend} {row.pipeline}",
        figure(row.iterationMS),
        figure(row.forwardMS if row.backwardMS is not None else None),
        figure(row.backwardMS),
        ratio(vs_torch),
        figure(row.usefulTFPerGPU),
        short(tokens_per_s(report.meta, row)),
        figure(row.meanTXGBps),
        figure(row.meanRXGBps),
        figure(row.modeledHBMGBps),
        figure(row.peakAllocatedGiB),
        ABSENT if row.spread is None else f"{row.spread:.1%}",
        figure(sum(row.floorMS) / len(row.floorMS) if row.floorMS else None),
        marks(row),
        _memory_policy(row),
    ]


def _memory_policy(row: CaseRow) -> str:
    """What capacity made the run do again in backward."""
    if isinstance(row.capacity, DistMoeCapacity):
        did = row.capacity
        return f"recomputes {did.capacityRecomputeFlags} of {did.inspectedRankLayers} rank-layers"
    if isinstance(row.capacity, MokCapacity):
        return f"replays {row.capacity.totalReplayRows} rows"
    return ABSENT
