"""The table of accepted cases, by workload."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console

from moebench.reduce.pairs import torch_ratios
from moebench.reduce.schema import CaseRow, DistMoeCapacity, MokCapacity, Report
from moebench.show.derived import group_name, tokens_per_s, variant_name
from moebench.show.layout import Cell, Column, Section, print_sections
from moebench.show.marks import marks
from moebench.show.text import ABSENT, figure, ratio, short


@dataclass(frozen=True)
class Unit:
    """A unit for a whole column: the smaller one where no value reaches 1 of the larger."""

    name: str
    factor: float = 1.0

    def figure(self, value: float | None) -> str:
        return figure(None if value is None else value * self.factor)


def _unit(values: Iterable[float | None], large: str, small: str, factor: float) -> Unit:
    return Unit(large) if any(value is not None and value >= 1 for value in values) else Unit(small, factor)


@dataclass(frozen=True)
class Units:
    flops: Unit
    traffic: Unit
    hbm: Unit
    memory: Unit

    @classmethod
    def of(cls, rows: list[CaseRow]) -> "Units":
        traffic = [rate for row in rows for rate in (row.meanTXGBps, row.meanRXGBps)]
        return cls(
            flops=_unit((row.usefulTFPerGPU for row in rows), "TFLOP/s", "GFLOP/s", 1e3),
            traffic=_unit(traffic, "GB/s", "MB/s", 1e3),
            hbm=_unit((row.modeledHBMGBps for row in rows), "GB/s", "MB/s", 1e3),
            memory=_unit((row.peakAllocatedGiB for row in rows), "GiB", "MiB", 2**10),
        )


def _columns(units: Units) -> list[Column]:
    """Rates are per rank. `floor` is the fastest rank's time, `ms` the slowest's. In inference, forward is all."""
    return [
        Column("ms", 0),
        Column("forward\nms", 6),
        Column("backward\nms", 6),
        Column("vs\ntorch", 5),
        Column(units.flops.name, 1),
        Column("tokens\n/s", 2),
        Column(f"TX\n{units.traffic.name}", 3),
        Column(f"RX\n{units.traffic.name}", 4),
        Column(f"HBM {units.hbm.name}\nmodeled", 8),
        Column(f"peak\n{units.memory.name}", 3),
        Column("spread", 7),
        Column("floor\nms", 9),
        Column("mark", 0, "left"),
        Column("memory policy", 10, "left"),
    ]


def print_cases(report: Report, console: Console) -> None:
    """Cases grouped by mode, ep and precision, then by workload, in report order inside a workload."""
    ratios, units = torch_ratios(report), Units.of(report.cases)
    groups: dict[str, dict[str, list[CaseRow]]] = {}
    for row in report.cases:
        groups.setdefault(group_name(row), {}).setdefault(variant_name(row), []).append(row)
    sections = []
    for group, variants in groups.items():
        cells: list[list[Cell]] = []
        for variant, rows in variants.items():
            cells.append([variant])
            cells += [_cells(report, row, ratios.get(row.id), units) for row in rows]
        sections.append(Section(group, cells))
    print_sections(console, _columns(units), sections)


def _cells(report: Report, row: CaseRow, vs_torch: float | None, units: Units) -> list[Cell]:
    return [
        f"  {row.backend} {row.pipeline}",
        figure(row.iterationMS),
        figure(row.forwardMS if row.backwardMS is not None else None),
        figure(row.backwardMS),
        ratio(vs_torch),
        units.flops.figure(row.usefulTFPerGPU),
        short(tokens_per_s(report.meta, row)),
        units.traffic.figure(row.meanTXGBps),
        units.traffic.figure(row.meanRXGBps),
        units.hbm.figure(row.modeledHBMGBps),
        units.memory.figure(row.peakAllocatedGiB),
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
