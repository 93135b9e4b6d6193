"""`moebench sweep`: run the cases of a matrix, and report."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moebench.cli.cases import print_notes
from moebench.cli.options import SELECTING, takes_selection

if TYPE_CHECKING:
    from moebench.cases.expand import Selection
    from moebench.cases.plan import Plan

_PANEL, _MEASURE = "Run", "How cases are measured"


@takes_selection
def sweep(
    selection: "Selection",
    asked: dict[str, Any],
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The run folder; DIR-2 if DIR exists. Default: runs/<time>-<matrix>.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="NAME", help="auto (GPUs if there are any), cpu or cuda.", rich_help_panel=_PANEL
        ),
    ] = "auto",
    time_budget: Annotated[
        float | None,
        typer.Option(
            "--time-budget",
            metavar="SECONDS",
            min=1,
            help="Begin no case after this; the rest is reported as not run. Default: the sum of all deadlines.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    case_timeout: Annotated[
        float | None,
        typer.Option(
            "--case-timeout",
            metavar="SECONDS",
            min=1,
            help="End a case that takes longer. Default: 60 s and ten times its estimate.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option(
            "--start-timeout",
            metavar="SECONDS",
            min=1,
            help="End a launch whose ranks have not met by then. Default: 60 s and six times its estimate.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    attempts: Annotated[
        int,
        typer.Option(
            "--attempts",
            metavar="N",
            min=1,
            max=100,
            help="Tries at a case that fails or is rejected, other than as incorrect. All are kept.",
            rich_help_panel=_PANEL,
        ),
    ] = 2,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Run what is not finished in this run folder, such as runs/latest.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    retry: Annotated[
        list[str] | None,
        typer.Option(
            "--retry",
            metavar="WHAT",
            help="With --resume: also finished cases of this status or reason, such as incorrect, or stale ones.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            metavar="FAULT",
            help="Break cases on purpose, to test what follows: KIND[:rank=,phase=,case=GLOB,attempt=], "
            "KIND such as raise, kill, hang or nan.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired",
            help="Let the windows of one workload's cases alternate, and compare them block by block.",
            rich_help_panel=_MEASURE,
        ),
    ] = False,
    blocks: Annotated[
        int | None,
        typer.Option(
            "--blocks",
            metavar="N",
            min=1,
            max=500,
            help="With --paired: blocks of two windows of each case. 24 find a difference of 2 % in noise of 3 %. "
            "Default: enough for as many comparisons as there are, 8 at least.",
            rich_help_panel=_MEASURE,
            show_default=False,
        ),
    ] = None,
    cuda_graph: Annotated[
        bool,
        typer.Option("--cuda-graph", help="On GPUs: time replays of a captured iteration.", rich_help_panel=_MEASURE),
    ] = False,
    l2_flush: Annotated[
        bool,
        typer.Option(
            "--l2-flush",
            help="On GPUs: overwrite the L2 cache before each iteration, untimed.",
            rich_help_panel=_MEASURE,
        ),
    ] = False,
) -> None:
    """Run cases, and end with the pair table and a report.

    One torchrun for each number of ranks runs its cases one after another. A case that fails costs itself only,
    and is tried again. Ctrl-C ends the sweep after the current case, twice at once; what was measured is
    reported, and --resume runs the rest.

    Exit status: 0 when every planned case is accepted or unsupported and at least one is accepted, 3 when some
    are not, 2 when nothing could be started, 130 when interrupted.

    Examples:

    moebench sweep

    moebench sweep --ep 16 --precision mxfp8

    moebench sweep --matrix gb300 -k '*-ep8-*' --out runs/monday

    moebench sweep --ep 4 --paired --blocks 24

    moebench sweep --resume runs/monday --retry incorrect
    """
    from moebench.cases.case import alternating
    from moebench.cases.fault import parse_fault, refuse_idle_faults
    from moebench.cases.machine import this_machine
    from moebench.cli.resuming import resumed_work
    from moebench.cli.running import DEVICES, Asked, execute, plan_of
    from moebench.errors import UsageError
    from moebench.inert import clean
    from moebench.launch.folder import create_run_folder
    from moebench.launch.lock import locked
    from moebench.launch.surroundings import surroundings
    from moebench.launch.work import RETRIABLE, work
    from moebench.reduce.comparisons import blocks_for, claims_of

    os.umask(os.umask(0o022) | 0o022)
    if device not in DEVICES:
        raise UsageError(f"--device {device}: unknown. Known values: {', '.join(DEVICES)}.")
    machine = this_machine()
    if device == "cuda" and not machine.gpu_bytes:
        raise UsageError("--device cuda: no GPU can be seen here. Leave it out, or ask `moebench doctor`.")
    wanted = [word for text in retry or [] for word in text.split(",")]
    for word in wanted:
        if word not in RETRIABLE:
            raise UsageError(f"--retry {word}: unknown. Known values: {', '.join(RETRIABLE)}.")
    faults = [parse_fault(text) for text in inject or []]
    how = Asked(device, attempts, time_budget, case_timeout, start_timeout, faults)
    if resume is not None:
        _refuse_beside_resume(context)
        run = Path(os.path.realpath(resume))
        if not (run / "plan.json").exists():
            raise UsageError(f"--resume {resume}: not a run folder: it has no plan.json. Name one that a sweep made.")
        with locked(run) as lock:
            to_do, run_device, notes = resumed_work(run, machine, wanted)
            refuse_idle_faults(faults, [one.case for one in to_do.todo])
            for note in notes:
                typer.echo(f"moebench: {clean(note)}", err=True)
            raise typer.Exit(execute(run, to_do, machine, replace(how, device=run_device), lock))
    if wanted:
        raise UsageError("--retry: works together with --resume RUN only.")
    measured: dict[str, Any] = {key: True for key, on in (("cuda_graph", cuda_graph), ("l2_flush", l2_flush)) if on}
    if blocks is not None and not paired:
        raise UsageError("--blocks: works together with --paired only.")
    if paired:
        measured |= {"paired": True, "windows": 2 * (blocks or 1)}
    plan = plan_of(selection, machine, device, measured, asked)
    if paired:
        groups = alternating(plan.runnable())
        if not claims_of(groups):
            typer.echo("moebench: --paired: no case has mok or torch beside it to be compared with", err=True)
        if blocks is None:
            measured["windows"] = 2 * blocks_for(groups)
            plan = plan_of(selection, machine, device, measured, asked)
    if not plan.runnable():
        raise UsageError(_nothing_runs(plan))
    refuse_idle_faults(faults, plan.runnable())
    to_do = work(plan, lambda case: surroundings(case, machine, device))
    run = create_run_folder(out, plan.matrix)
    print_notes(selection)
    with locked(run) as lock:
        raise typer.Exit(execute(run, to_do, machine, how, lock))


def _refuse_beside_resume(context: typer.Context) -> None:
    """A resumed run selects by the options that its plan recorded."""
    from moebench.errors import UsageError

    fixed = (*SELECTING, "out", "device", "paired", "blocks", "cuda_graph", "l2_flush")
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in fixed and source is not None and source.name != "DEFAULT":
            raise UsageError(
                f"{parameter.opts[0]}: cannot be given with --resume, which goes on as the run was planned. "
                "Leave it out, or start a new sweep."
            )


def _nothing_runs(plan: "Plan") -> str:
    reasons = dict.fromkeys(planned.unsupported for planned in plan.cases)
    shown = "; ".join(str(reason) for reason in list(reasons)[:3])
    return (
        f"none of the {len(plan.cases)} selected cases can run here: {shown}. "
        "`moebench plan` with the same flags says why for each case."
    )
