"""`moebench doctor`: what this machine is, what can run on it, and what stands in the way."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from moebench.launch.doctor import Diagnosis, Finding
    from moebench.launch.doctor_gpus import Gpu
    from moebench.launch.self_test import SelfTest

GIB = 2**30
LABEL_WIDTH = 20

Facts = Iterator[tuple[str, str]]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="An object; nothing else on standard output.")] = False,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test", help="Measure work of known time, skew and bytes instead, and say how far off it is."
        ),
    ] = False,
) -> None:
    """Examine this machine: processor, GPUs and links, libraries, limits, and whether its ranks can talk.

    Takes some seconds, for it starts ranks that exchange data. Each finding comes with its remedy.

    Exit status: 0 when moebench can measure here, 1 when a finding keeps it from that.

    Examples: `moebench doctor`, `moebench doctor --json`, `moebench doctor --self-test`
    """
    if self_test:
        raise typer.Exit(_self_test(as_json))
    from moebench.launch.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        typer.echo(diagnosis.model_dump_json(indent=2))
    else:
        from moebench.show.console import make_console

        print_diagnosis(diagnosis, make_console())
    raise typer.Exit(0 if diagnosis.fine else 1)


def print_diagnosis(diagnosis: "Diagnosis", console: "Console") -> None:
    """Facts under headings, then the findings, what stops first."""
    from moebench.show.layout import paragraph, title

    sections = {
        "Machine": _machine(diagnosis),
        "GPUs": _gpus(diagnosis),
        "torch": _torch(diagnosis),
        "Backends": _backends(diagnosis),
        "Collectives": _collectives(diagnosis),
    }
    for heading, facts in sections.items():
        title(console, heading)
        for label, value in facts:
            _line(console, label, value)
        console.print()
    _findings(diagnosis.findings, console)
    paragraph(console, "moebench can measure here." if diagnosis.fine else "Cure what STOPS, then ask again.")


def _findings(findings: "Sequence[Finding]", console: "Console") -> None:
    from moebench.show.layout import paragraph, title

    title(console, "Findings")
    for finding in findings:
        _line(console, "STOPS" if finding.stops else "note", f"{finding.what}.", "bold red" if finding.stops else "")
        _line(console, "", f"-> {finding.remedy}")
    if not findings:
        paragraph(console, "none", indent=2)
    console.print()


def _self_test(as_json: bool) -> int:
    from functools import partial

    from moebench.cases.machine import this_machine
    from moebench.cli.progress import SweepProgress
    from moebench.launch.self_test import self_test
    from moebench.show.console import make_console

    tested = self_test(this_machine(), partial(SweepProgress, make_console(stderr=True)))
    if as_json:
        typer.echo(tested.model_dump_json(indent=2))
    else:
        print_self_test(tested, make_console())
    return 0 if tested.fine else 1


def print_self_test(tested: "SelfTest", console: "Console") -> None:
    """A row a figure, then the findings, what stops first."""
    from rich.text import Text

    from moebench.show.layout import Cell, Column, Section, paragraph, print_sections
    from moebench.show.text import ABSENT, counted, figure

    columns = [
        Column("unit", 3, "left"),
        Column("asked", 2),
        Column("took", 1),
        Column("measured", 0),
        Column("bias", 0),
        Column("limit", 0),
        Column("spread", 1),
        Column("windows", 4),
    ]
    rows: list[list[Cell]] = [
        [
            one.name,
            one.unit,
            figure(one.asked),
            figure(one.took),
            figure(one.measured),
            Text(f"{one.bias:+.2%}", "green" if one.passed else "bold red"),
            f"{one.limit:.1%}",
            ABSENT if one.spread is None else f"{one.spread:.1%}",
            str(one.windows),
        ]
        for one in tested.figures
    ]
    where = f"{counted(tested.ranks, 'rank')}, {tested.device}" if tested.device else counted(tested.ranks, "rank")
    if rows:
        print_sections(console, columns, [Section(where, rows)])
    paragraph(
        console, "asked: what a backend was to take. took: by its own clock. bias: measured against took.", style="dim"
    )
    console.print()
    _findings(tested.findings, console)
    paragraph(
        console, "moebench measures right here." if tested.fine else "Figures of this kind are not to be trusted here."
    )


def _line(console: "Console", label: str, value: str, style: str = "") -> None:
    """A label and a value that wraps under itself."""
    from textwrap import wrap

    from rich.text import Text

    from moebench.show.console import ascii_only
    from moebench.show.layout import printable

    plain = ascii_only(console)
    lines = wrap(printable(value, plain), max(20, console.width - LABEL_WIDTH), break_on_hyphens=False)
    head = f"  {printable(label, plain)}".ljust(LABEL_WIDTH)
    console.print(Text.assemble((head, style), lines[0] if lines else ""))
    for line in lines[1:]:
        console.print(Text(" " * LABEL_WIDTH + line))


def _machine(diagnosis: "Diagnosis") -> Facts:
    host, limits = diagnosis.host, diagnosis.host.limits
    yield "host", f"{host.name}, {host.system}"
    load = "" if host.load is None else f", load {host.load:.1f}"
    yield "processor", f"{host.processor}, {_or(host.cores)} cores usable{load}"
    yield "memory", f"{_size(host.available_bytes)} available"
    yield "shared memory", f"/dev/shm {_size(host.shared_memory_bytes)}"
    yield "disk", f"{_size(host.disk_free_bytes)} free in {host.folder}"
    if limits is not None:
        locked = "unlimited" if limits.locked_memory_bytes is None else _size(limits.locked_memory_bytes)
        files, processes = (_or(value, "unlimited") for value in (limits.open_files, limits.processes))
        yield "limits", f"{files} open files (-n), {locked} locked (-l), {processes} processes (-u)"
    yield "loopback", _or(host.loopback, "cannot be used")
    yield "InfiniBand", ", ".join(host.infiniband) or "none"
    yield "software", f"moebench {host.moebench}, Python {host.python}"


def _gpus(diagnosis: "Diagnosis") -> Facts:
    found = diagnosis.gpus
    if not found.gpus:
        yield "found", f"none ({found.why_no_nvml})" if found.why_no_nvml else "none"
        return
    yield "driver", f"{_or(found.driver)}, CUDA up to {_or(found.cuda)}, asked by {found.source}"
    for gpu in found.gpus:
        yield f"GPU {gpu.index}", ", ".join(_gpu(gpu))


def _gpu(gpu: "Gpu") -> Iterator[str]:
    yield gpu.name
    if gpu.compute_capability is not None:
        yield f"compute capability {gpu.compute_capability}"
    yield f"{_size(gpu.free_bytes)} of {_size(gpu.memory_bytes)} free"
    if gpu.sm_clock_mhz is not None:
        yield f"SM {gpu.sm_clock_mhz} of {_or(gpu.sm_clock_max_mhz)} MHz"
    if gpu.memory_clock_mhz is not None:
        yield f"memory {gpu.memory_clock_mhz} MHz"
    if gpu.power_w is not None:
        yield f"{gpu.power_w:.0f} W, cap {_or(None if gpu.power_limit_w is None else round(gpu.power_limit_w))} W"
    if gpu.temperature_c is not None:
        yield f"{gpu.temperature_c} C"
    if gpu.throttle_reasons is not None:
        yield f"throttle bits {gpu.throttle_reasons:#x}"
    if gpu.pcie_lanes is not None:
        yield f"PCIe {_or(gpu.pcie_generation)} x{gpu.pcie_lanes}"
    if gpu.nvlinks is not None:
        yield f"NVLinks {_or(gpu.nvlinks_up)} of {gpu.nvlinks} up"
        yield "counters " + ("readable" if gpu.nvlink_counters is None else f"not readable ({gpu.nvlink_counters})")
    if gpu.mig:
        yield "MIG"


def _torch(diagnosis: "Diagnosis") -> Facts:
    torch = diagnosis.torch
    if torch.error is not None:
        yield "torch", f"{_or(torch.version, 'not installed')}: {torch.error}"
        return
    build = f"CUDA {torch.cuda}" if torch.cuda else "CPU build"
    yield "torch", f"{torch.version} ({build}), NCCL {_or(torch.nccl, 'none')}, Triton {_or(torch.triton, 'none')}"
    yield "GPUs it can use", str(torch.gpus)


def _backends(diagnosis: "Diagnosis") -> Facts:
    for backend in diagnosis.backends:
        yield f"{backend.name} {backend.implementation}", f"missing: {backend.missing}" if backend.missing else "runs"


def _collectives(diagnosis: "Diagnosis") -> Facts:
    test = diagnosis.collectives
    yield (
        "all-to-all",
        f"{test.ranks} ranks on {test.device} over {test.collectives}: " + ("right" if test.passed else "FAILED"),
    )
    if test.latency_us is not None and test.bandwidth_gbps is not None:
        yield "", f"{test.latency_us:.0f} us for a tiny one, {test.bandwidth_gbps:.2f} GB/s sent by a rank"
    yield "", f"test took {test.seconds:.0f} s"


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:.0f} MiB"


def _or(value: object, otherwise: str = "unknown") -> str:
    return otherwise if value is None else str(value)
