"""The middle of `moebench sweep`: a run folder is made or taken up again, its cases are run, its report is shown."""

import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from pydantic import ValidationError

from moebench.cases.case import Case, Measure
from moebench.cases.expand import Selection
from moebench.cases.fault import Fault
from moebench.cases.machine import Machine
from moebench.cases.plan import Plan, Planned
from moebench.cases.runnable import fit_together, why_not_here
from moebench.cli.progress import SweepProgress, seconds_text
from moebench.errors import MoebenchError, UsageError
from moebench.launch.estimate import case_s, launch_s
from moebench.launch.folder import point_latest_to
from moebench.launch.interrupts import handle_interrupts
from moebench.launch.journal import Journal, Sweep
from moebench.launch.supervisor import LAUNCH_TRIES, Ending, Limits, Supervisor
from moebench.launch.work import GONE, Work
from moebench.rank.trace import write_atomically
from moebench.reading import first_problem
from moebench.reduce.accept import judge
from moebench.reduce.metrics import case_times
from moebench.reduce.report import reduce_runs, write_report
from moebench.reduce.traces import Delivered, read_traces
from moebench.show.console import Steady, make_console
from moebench.show.layout import paragraph
from moebench.show.problems import counts
from moebench.show.summary import print_pairs
from moebench.show.text import counted
from moebench.status import Status, is_finished

DEVICES = ("auto", "cpu", "cuda")
GPU_ONLY = ("cuda_graph", "l2_flush")
"""Flags that only a GPU can follow."""


@dataclass(frozen=True)
class Asked:
    """What the command line asked for beside the cases. Times in seconds; none: from the plan's estimates."""

    device: str
    attempts: int
    time_budget: float | None
    case_timeout: float | None
    start_timeout: float | None
    faults: Sequence[Fault]


def plan_of(
    selection: Selection, machine: Machine, device: str, measured: dict[str, Any], asked: dict[str, Any]
) -> Plan:
    """The plan of a selection. `measured`: what flags set in the Measure of every case. Raises UsageError for what
    cannot be."""
    selection = _measured_so(selection, device, machine, measured)
    matrix = selection.matrix
    return Plan(
        matrix=matrix.name,
        shape=matrix.shape,
        measure=matrix.measure,
        profiles={name: list(factors) for name, factors in matrix.profiles.items()},
        notes=selection.notes,
        asked=asked | {"device": device, "measured": measured},
        cases=[Planned(case=case, unsupported=why_not_here(case, machine)) for case in selection.cases],
    )


def _measured_so(selection: Selection, device: str, machine: Machine, update: dict[str, Any]) -> Selection:
    flags = [name for name in GPU_ONLY if update.get(name)]
    if flags and (device == "cpu" or not machine.gpu_bytes):
        spelt = " ".join("--" + flag.replace("_", "-") for flag in flags)
        why = "--device cpu was given" if device == "cpu" else "this machine has no GPU"
        raise UsageError(f"{spelt}: works on GPUs only, and {why}. Leave it out.")
    return replace(
        selection,
        matrix=selection.matrix.model_copy(update={"measure": _updated(selection.matrix.measure, update)}),
        cases=[case.model_copy(update={"measure": _updated(case.measure, update)}) for case in selection.cases],
    )


def _updated(measure: Measure, update: dict[str, Any]) -> Measure:
    try:
        return Measure.model_validate(measure.model_dump() | update)
    except ValidationError as error:
        raise UsageError(f"cases cannot be measured so: {first_problem(error)}.") from error


def execute(run: Path, to_do: Work, machine: Machine, asked: Asked, lock: int) -> int:
    """Run what there is to do, then report the whole run; the exit status."""
    console = make_console(file=cast(IO[str], Steady(sys.stdout)))
    cases = [one.case for one in to_do.todo]
    on_gpu = asked.device != "cpu" and machine.gpu_bytes != ()
    estimates_s = {case.id: case_s(case, machine.cores, on_gpu) for case in cases}
    launches_s = {ranks: launch_s(ranks, machine.cores) for ranks in sorted({case.ep for case in cases})}
    write_atomically(run / "plan.json", to_do.plan.model_dump_json(indent=1))
    Journal(run).add(
        Sweep(
            pid=os.getpid(),
            host=platform.node(),
            surroundings=to_do.surroundings,
            injected=[str(fault) for fault in asked.faults],
        )
    )
    _announce(console, run, to_do, sum(estimates_s.values()) + sum(launches_s.values()), len(launches_s))
    limits = _limits(asked, estimates_s, launches_s)
    interrupted: list[str] = []
    failed: MoebenchError | None = None
    with SweepProgress(console, estimates_s, launches_s) as progress:
        supervisor = Supervisor(
            run,
            to_do.todo,
            asked.device,
            limits,
            lambda case, attempt: _ending(case, read_traces(run, case.id, attempt, case.ep)),
            progress,
            asked.faults,
            held=(lock,),
            fit_together=lambda group: fit_together(group, machine),
        )

        def stop(why: str) -> None:
            interrupted.append(why)
            supervisor.stop(why)
            if not supervisor.is_over:
                console.print(f"{why}: finishing the current case; once more stops at once")

        with handle_interrupts(stop):
            try:
                supervisor.execute()
            except KeyboardInterrupt:
                interrupted.append("stopped at once")
            except MoebenchError as error:
                failed = error
            progress.stop()
            point_latest_to(run)
            status = _report_whatever_is_there(run, failed)
    if failed is not None:
        raise failed
    return 130 if interrupted else status


def _report_whatever_is_there(run: Path, failed: MoebenchError | None) -> int:
    """The exit status by the report; after a failure the report is tried, and the failure is what the user hears."""
    try:
        return _report(run)
    except (OSError, MoebenchError) as error:
        if failed is not None:
            return failed.exit_code
        raise MoebenchError(str(error)) from error


def _limits(asked: Asked, estimates_s: dict[str, float], launches_s: dict[int, float]) -> Limits:
    """Deadlines asked for, or generous ones by the estimates. The whole may take what its parts may take."""

    cases_s = {id: asked.case_timeout or 60 + 10 * estimate for id, estimate in estimates_s.items()}
    start_up_s = asked.start_timeout or 60 + 6 * max(launches_s.values(), default=0.0)
    starts = LAUNCH_TRIES * (len(launches_s) + len(estimates_s))
    whole_s = asked.attempts * (sum(cases_s.values()) + starts * start_up_s)
    return Limits(start_up_s, lambda case: cases_s[case.id], asked.time_budget or whole_s, asked.attempts)


def _announce(console: Any, run: Path, to_do: Work, total_s: float, launches: int) -> None:
    cannot = sum(planned.unsupported is not None for planned in to_do.plan.cases)
    kept = len(to_do.plan.cases) - len(to_do.todo) - cannot
    aside = [f"{count} {what}" for count, what in ((kept, "kept"), (cannot, "cannot run here")) if count]
    console.print(
        f"{counted(len(to_do.todo), 'case')} in {launches} launch{'es' if launches != 1 else ''}"
        + (f" ({', '.join(aside)})" if aside else "")
        + f", about {seconds_text(total_s)}; run folder {short(run)}",
        soft_wrap=True,
    )
    for reason, count in Counter(planned.stale for planned in to_do.stale).items():
        then = "" if reason == GONE else f"; --retry stale runs {'it' if count == 1 else 'them'} again"
        console.print(f"stale, {counted(count, 'case')}: {reason}{then}", soft_wrap=True)


def _ending(case: Case, delivered: Delivered) -> Ending:
    outcome = judge(case, delivered)
    accepted = outcome.status is Status.ACCEPTED
    iteration_ms = case_times(outcome.traces).iteration_ms if accepted else None
    return Ending(outcome.status, outcome.reason, outcome.message, iteration_ms, outcome.log)


def _report(run: Path) -> int:
    """Reduce the run, show its pairs, and say how it went as an exit status."""
    report, unwritten = reduce_runs([run]), None
    try:
        write_report(report, run / "report.json")
    except MoebenchError as error:
        unwritten = error
    console = make_console()
    print_pairs(report, console)
    paragraph(console, counts(report))
    if unwritten is not None:
        raise MoebenchError(f"{unwritten} What was measured is kept: moebench reduce {short(run)} -o FILE.")
    paragraph(console, f"Report: {short(run / 'report.json')}")
    bad = [entry for entry in report.rejected if entry.status is not Status.UNSUPPORTED]
    if not all(is_finished(entry.status, entry.reason) for entry in bad):
        console.print(f"To run what is not finished: moebench sweep --resume {short(run)}", soft_wrap=True)
    return 3 if bad or not report.cases else 0


def short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
