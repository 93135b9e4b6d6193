"""`moebench sweep`: run the cases of a matrix, and report."""

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from moebench.cli.cases import print_notes
from moebench.cli.options import takes_selection

if TYPE_CHECKING:
    from moebench.cases.case import Case
    from moebench.cases.expand import Selection
    from moebench.cases.machine import Machine
    from moebench.cases.plan import Plan
    from moebench.launch.supervisor import Ending

_PANEL, _MEASURE = "Run", "How cases are measured"


@takes_selection
def sweep(
    selection: "Selection",
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
            help="Begin no case after this; the rest is reported as not run.",
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

    One torchrun for each number of ranks runs its cases one after another. Ctrl-C ends the sweep after the
    current case, twice at once; what was measured is reported.

    Exit status: 0 when every planned case is accepted or unsupported and at least one is accepted, 3 when some
    are not, 2 when nothing could be started, 130 when interrupted.

    Examples:

    moebench sweep

    moebench sweep --ep 16 --precision mxfp8

    moebench sweep --matrix gb300 -k '*-ep8-*' --out runs/monday
    """
    from moebench.cases.machine import this_machine
    from moebench.errors import UsageError

    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {device}: unknown. Known values: auto, cpu, cuda.")
    machine = this_machine()
    selection = _measured_so(selection, device, machine, {"cuda_graph": cuda_graph, "l2_flush": l2_flush})
    plan = _plan(selection, machine)
    runnable = plan.runnable()
    if not runnable:
        raise UsageError(_nothing_runs(plan))
    _run(selection, plan, machine, device, out, time_budget, case_timeout, start_timeout)


def _measured_so(selection: "Selection", device: str, machine: "Machine", asked: dict[str, bool]) -> "Selection":
    """The selection with what the flags ask for in every case. Raises UsageError where there is no GPU for it."""
    from dataclasses import replace

    from moebench.errors import UsageError

    update = {key: True for key, on in asked.items() if on}
    if not update:
        return selection
    if device == "cpu" or not machine.gpu_bytes:
        flags = " ".join("--" + key.replace("_", "-") for key in update)
        why = "--device cpu was given" if device == "cpu" else "this machine has no GPU"
        raise UsageError(f"{flags}: works on GPUs only, and {why}. Leave it out.")
    return replace(
        selection,
        matrix=selection.matrix.model_copy(update={"measure": selection.matrix.measure.model_copy(update=update)}),
        cases=[case.model_copy(update={"measure": case.measure.model_copy(update=update)}) for case in selection.cases],
    )


def _plan(selection: "Selection", machine: "Machine") -> "Plan":
    from moebench.cases.plan import Plan, Planned
    from moebench.cases.runnable import why_not_here

    matrix = selection.matrix
    return Plan(
        matrix=matrix.name,
        shape=matrix.shape,
        measure=matrix.measure,
        profiles={name: list(factors) for name, factors in matrix.profiles.items()},
        notes=selection.notes,
        cases=[Planned(case=case, unsupported=why_not_here(case, machine)) for case in selection.cases],
    )


def _nothing_runs(plan: "Plan") -> str:
    reasons = dict.fromkeys(planned.unsupported for planned in plan.cases)
    shown = "; ".join(str(reason) for reason in list(reasons)[:3])
    return (
        f"none of the {len(plan.cases)} selected cases can run here: {shown}. "
        "`moebench plan` with the same flags says why for each case."
    )


def _run(
    selection: "Selection",
    plan: "Plan",
    machine: "Machine",
    device: str,
    out: Path | None,
    time_budget: float | None,
    case_timeout: float | None,
    start_timeout: float | None,
) -> None:
    from moebench.cli.progress import SweepProgress, seconds_text
    from moebench.launch.estimate import case_s, launch_s
    from moebench.launch.folder import create_run_folder, point_latest_to
    from moebench.launch.interrupts import handle_interrupts
    from moebench.launch.supervisor import Limits, Supervisor
    from moebench.rank.trace import write_atomically
    from moebench.show.console import Steady, make_console
    from moebench.show.text import counted

    console = make_console(file=cast(IO[str], Steady(sys.stdout)))
    runnable = plan.runnable()
    on_gpu = device != "cpu" and machine.gpu_bytes != ()
    estimates_s = {case.id: case_s(case, machine.cores, on_gpu) for case in runnable}
    launches_s = {ranks: launch_s(ranks, machine.cores) for ranks in sorted({case.ep for case in runnable})}
    total_s = sum(estimates_s.values()) + sum(launches_s.values())
    run = create_run_folder(out, plan.matrix)
    write_atomically(run / "plan.json", plan.model_dump_json(indent=1))

    print_notes(selection)
    cannot = len(plan.cases) - len(runnable)
    console.print(
        f"{counted(len(runnable), 'case')} in {len(launches_s)} launch{'es' if len(launches_s) > 1 else ''}"
        + (f" ({cannot} more cannot run here)" if cannot else "")
        + f", about {seconds_text(total_s)}; run folder {_short(run)}",
        soft_wrap=True,
    )
    limits = Limits(
        start_up_s=start_timeout or 60 + 6 * max(launches_s.values()),
        case_s=case_timeout or 60 + 10 * max(estimates_s.values()),
        budget_s=time_budget,
    )
    interrupted: list[str] = []
    with SweepProgress(console, estimates_s, launches_s) as progress:
        supervisor = Supervisor(run, plan, device, limits, lambda case, attempt: _judge(run, case, attempt), progress)

        def stop(why: str) -> None:
            interrupted.append(why)
            supervisor.stop(why)
            console.print(f"{why}: finishing the current case; once more stops at once")

        try:
            with handle_interrupts(stop):
                supervisor.execute()
        except KeyboardInterrupt:
            interrupted.append("stopped at once")
    point_latest_to(run)
    raise typer.Exit(_report(run, interrupted=bool(interrupted)))


def _judge(run: Path, case: "Case", attempt: int) -> "Ending":
    from moebench.launch.supervisor import Ending
    from moebench.reduce.accept import judge
    from moebench.reduce.metrics import case_times
    from moebench.reduce.traces import read_traces
    from moebench.status import Status

    outcome = judge(case, read_traces(run, case.id, attempt, case.ep))
    accepted = outcome.status is Status.ACCEPTED
    iteration_ms = case_times(outcome.traces).iteration_ms if accepted else None
    return Ending(outcome.status, outcome.reason, outcome.message, iteration_ms)


def _report(run: Path, *, interrupted: bool) -> int:
    """Reduce the run, show its pairs, and say how it went as an exit status."""
    from moebench.reduce.report import reduce_runs, write_report
    from moebench.show.console import make_console
    from moebench.show.layout import paragraph
    from moebench.show.problems import counts
    from moebench.show.summary import print_pairs
    from moebench.status import Status

    report = reduce_runs([run])
    write_report(report, run / "report.json")
    console = make_console()
    print_pairs(report, console)
    paragraph(console, counts(report))
    paragraph(console, f"Report: {_short(run / 'report.json')}")
    if interrupted:
        return 130
    fine = all(rejected.status == Status.UNSUPPORTED for rejected in report.rejected or [])
    return 0 if fine and report.cases else 3


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
