"""How `moebench plan` looks on a terminal. ASCII only, 80 columns are enough."""

import re
from collections import defaultdict
from itertools import groupby
from string import ascii_lowercase

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moebench.cases.case import Case
from moebench.cases.expand import Selection
from moebench.cases.forecast import Forecast
from moebench.cases.machine import Machine
from moebench.inert import clean

Planned = tuple[Case, Forecast]
GIB = 2**30


def draw(console: Console, selection: Selection, forecasts: list[Forecast], machine: Machine) -> None:
    """Print notes, the machine, a table of cases, packing capacity, reasons and totals."""
    planned = list(zip(selection.cases, forecasts, strict=True))
    for note in selection.notes:
        console.print(Text(f"note: {clean(note)}", style="yellow"))
    console.print(Text(_machine_line(machine)))
    console.print()
    marks = _marks(planned)
    gap = 1 if console.width < 100 else 3
    console.print(_cases_table(planned, marks, gap))
    console.print()
    if any(row.capacity for _, row in planned):
        console.print(_capacity_table(planned, gap))
        console.print()
    for mark, examples in marks.items():
        console.print(_reason(mark, examples))
    console.print(Text(_totals(planned), style="bold"))


def _machine_line(machine: Machine) -> str:
    gpus = f"{len(machine.gpu_bytes)} GPUs" if machine.gpu_bytes else "no GPU"
    return f"This machine: {machine.cores} cores, {machine.available_bytes / GIB:.1f} GiB available, {gpus}."


def _cases_table(planned: list[Planned], marks: dict[str, list[Planned]], gap: int) -> Table:
    table = _table("Modeled, for one rank and iteration; memory is the fullest rank's.", gap)
    for name in ("case", "backend"):
        table.add_column(name, overflow="fold")
    for name in ("memory", "FLOP", "HBM", "TX", "here"):
        table.add_column(name, justify="right", no_wrap=True)
    mark_of = {case.id: mark for mark, examples in marks.items() for case, _ in examples}
    for head, group in groupby(planned, key=lambda pair: _head(pair[0])):
        table.add_row(Text(head, style="bold cyan"))
        for case, row in group:
            mark = mark_of.get(case.id)
            table.add_row(
                f"  {_variant(case)}",
                f"{case.backend} {case.pipeline}",
                _si(row.memory_bytes_per_rank, "B", step=1024),
                _si(row.useful_flops, ""),
                _si(row.modeled_hbm_bytes, "B"),
                _si(row.logical_tx_bytes, "B"),
                Text("yes", style="green") if mark is None else Text(f"no ({mark})", style="red"),
            )
    return table


def _capacity_table(planned: list[Planned], gap: int) -> Table:
    table = _table("What the memory policies of packing cases keep, and what they compute or fetch again.", gap)
    table.add_column("packing", overflow="fold")
    for name in ("slot/retained", "saved", "scratch", "again"):
        table.add_column(name, justify="right", no_wrap=True)
    for head, group in groupby(planned, key=lambda pair: _head(pair[0])):
        lines = [(case, row.capacity) for case, row in group if row.capacity]
        if lines:
            table.add_row(Text(head, style="bold cyan"))
        for case, capacity in lines:
            cells = _dist_moe_cells if case.backend == "dist_moe" else _mok_cells
            name = f"  {case.backend} {case.pipeline} {_variant(case).removeprefix('packing ')}"
            table.add_row(name, *cells(case, capacity))
    return table


def _dist_moe_cells(case: Case, capacity: dict[str, int]) -> list[str]:
    sizes = [capacity[key] for key in ("slotBytes", "maxSavedRankBytes", "scratchBytes")]
    layers = capacity["capacityRecomputeFlags"] // case.ep
    return [*(_si(size, "B", step=1024) for size in sizes), f"{layers} of {case.layers} layers"]


def _mok_cells(case: Case, capacity: dict[str, int]) -> list[str]:
    return [f"{capacity['retainedRowsPerLayer']} rows", "-", "-", f"{capacity['totalReplayRows']} rows"]


def _table(caption: str, gap: int) -> Table:
    return Table(
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        header_style="bold",
        caption=caption,
        caption_justify="left",
    )


def _marks(planned: list[Planned]) -> dict[str, list[Planned]]:
    """Cases that cannot run here by letter: one letter for reasons that differ only in their figures."""
    alike: dict[str, list[Planned]] = defaultdict(list)
    for case, row in planned:
        if row.reason is not None:
            alike[re.sub(r"\d+(\.\d+)?", "N", row.reason)].append((case, row))
    letters = [*ascii_lowercase, *(f"{i}" for i in range(1, len(alike) + 1))]
    return dict(zip(letters, alike.values(), strict=False))


def _reason(mark: str, examples: list[Planned]) -> Group:
    case, row = examples[0]
    count = f"{len(examples)} cases, the first {case.id}" if len(examples) > 1 else case.id
    return Group(Text(f"({mark}) {count}:", style="red"), Padding(Text(clean(row.reason or "")), (0, 0, 0, 4)))


def _totals(planned: list[Planned]) -> str:
    sizes = sorted({row.ranks for _, row in planned})
    launches = f"{len(sizes)} launch{'es' if len(sizes) > 1 else ''} (ep {', '.join(map(str, sizes))})"
    runnable = sum(row.runnable for _, row in planned)
    return f"{len(planned)} cases in {launches}; {runnable} can run here."


def _head(case: Case) -> str:
    return f"{case.mode} ep{case.ep} {case.precision}"


def _variant(case: Case) -> str:
    axes = "".join(f" {axis}{getattr(case.shape, axis)}" for axis in case.overridden)
    return f"{case.category} {case.variant} F{case.shape.F}{axes}"


def _si(value: float | None, unit: str, step: int = 1000) -> str:
    """Three digits and a prefix: 1.82 TB, or 5.10 GiB where step is 1024."""
    if value is None:
        return "-"
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if value < 999.5 or prefix == "E":
            break
        value /= step
    if step == 1024 and prefix:
        prefix = prefix.upper() + "i"
    digits = 0 if prefix == "" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefix}{unit}"
