"""moebench measures what is known: a sweep of spin backends, whose times, skew and bytes are known beforehand."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.backends.pace import Pace
from moebench.cases.case import Case, Category, Measure, Mode, Pipeline, Precision
from moebench.cases.machine import Machine
from moebench.cases.plan import Plan, Planned
from moebench.cases.shape import Shape
from moebench.launch import self_test_figures as gauges
from moebench.launch.doctor import Finding
from moebench.launch.estimate import launch_s
from moebench.launch.history import History
from moebench.launch.interrupts import handle_interrupts
from moebench.launch.journal import Journal
from moebench.launch.self_test_figures import Figure, Gauge, figure
from moebench.launch.supervisor import Ending, Limits, Supervisor, Todo, Watcher
from moebench.rank.trace import write_atomically
from moebench.reduce.accept import Outcome, judge
from moebench.reduce.traces import read_traces
from moebench.status import Status

WINDOWS = 20
CASE_S = 60.0
BUDGET_S = 300.0
SHAPE = Shape(T=8, D=64, E=4, K=1, F=8)


@dataclass(frozen=True)
class Trial:
    """A spin, of F / 8 ms forward, and what is read off it."""

    backend: str
    spin: str
    """Its class, in `moebench.backends.spin`."""
    gauges: tuple[Gauge, ...]
    mode: Mode = Mode.INFERENCE
    F: int = 8
    iterations: int = 20
    least_ranks: int = 1

    def case(self, ranks: int, windows: int) -> Case:
        return Case(
            backend=self.backend,
            backend_path=f"moebench.backends.spin:{self.spin}",
            mode=self.mode,
            ep=ranks,
            precision=Precision.BF16,
            pipeline=Pipeline.EAGER,
            category=Category.SINGLE_LAYER,
            shape=SHAPE.model_copy(update={"F": self.F}),
            imbalance=1.0,
            layer_imbalances=(1.0,),
            measure=Measure(windows=windows, iterations=self.iterations, warmups=5, max_warmups=5),
        )


TRIALS = (
    Trial("spin_steady", "SteadySpin", (gauges.ITERATION,)),
    Trial("spin_steady", "SteadySpin", (gauges.FORWARD, gauges.BACKWARD), Mode.TRAINING, F=32, iterations=10),
    Trial("spin_skewed", "SkewedSpin", (gauges.SKEW,), least_ranks=2),
    Trial("spin_outlying", "OutlyingSpin", (gauges.OUTLIERS,)),
    Trial("spin_drifting", "DriftingSpin", (gauges.DRIFT,)),
    Trial("spin_sending", "SendingSpin", (gauges.SENT, gauges.RECEIVED), F=32, iterations=10, least_ranks=2),
)


class SelfTest(BaseModel):
    """What moebench measured of known work, on this machine."""

    model_config = ConfigDict(frozen=True)
    ranks: int
    device: str | None = Field(description="cpu or cuda; none if nothing could be measured")
    seconds: float
    figures: list[Figure]
    findings: list[Finding]

    @property
    def fine(self) -> bool:
        return not any(finding.stops for finding in self.findings)


Watch = Callable[[dict[str, float], dict[int, float]], AbstractContextManager[Watcher]]
"""Makes a watcher, from modeled seconds of each case by its id and of each launch by its ranks."""


def self_test(machine: Machine, watch: Watch, device: str = "auto", windows: int = WINDOWS) -> SelfTest:
    """Measure spin backends as a sweep does, on two ranks, or on one where there is one GPU. Takes about 20 s.

    Must run in the main thread, as a sweep must. Leaves no process and no file behind, also at a signal.
    """
    began = time.monotonic()
    ranks = 1 if device != "cpu" and len(machine.gpu_bytes) == 1 else 2
    trials = [(trial, trial.case(ranks, windows)) for trial in TRIALS if trial.least_ranks <= ranks]
    start_up_s = launch_s(ranks, machine.cores)
    with handle_interrupts(_end_at_once), tempfile.TemporaryDirectory(prefix="moebench-self-test-") as folder:
        run = Path(folder).resolve()
        with watch({case.id: _modeled_s(case) for _, case in trials}, {ranks: start_up_s}) as watcher:
            limits = Limits(start_up_s=60 + 6 * start_up_s, case_s=lambda case: CASE_S, budget_s=BUDGET_S)
            outcomes = _sweep(run, [case for _, case in trials], device, limits, watcher)
    figures = [
        figure(gauge, outcomes[case.id].traces)
        for trial, case in trials
        if outcomes[case.id].status is Status.ACCEPTED
        for gauge in trial.gauges
    ]
    devices = {str(trace.environment["device"]) for outcome in outcomes.values() for trace in outcome.traces}
    return SelfTest(
        ranks=ranks,
        device=", ".join(sorted(devices)) or None,
        seconds=time.monotonic() - began,
        figures=figures,
        findings=findings_of(figures, outcomes),
    )


def findings_of(figures: Sequence[Figure], outcomes: Mapping[str, Outcome]) -> list[Finding]:
    """What to make of the figures, and of cases by their ids; what stops comes first."""
    return [*_not_measured(outcomes), *_beyond_limits(figures), *_held_up(figures)]


def _end_at_once(why: str) -> None:
    raise KeyboardInterrupt(why)


def _modeled_s(case: Case) -> float:
    m, pace = case.measure, Pace()
    iteration_ms = pace.forward_ms(case, 0, 0) + (pace.backward_ms(case) if case.training else 0.0)
    return 0.5 + m.windows * m.iterations * iteration_ms / 1e3


def _sweep(run: Path, cases: list[Case], device: str, limits: Limits, watcher: Watcher) -> dict[str, Outcome]:
    """How each case ended, by its id; the traces of those that were accepted."""
    outcomes: dict[str, Outcome] = {}

    def judged(case: Case, attempt: int) -> Ending:
        outcome = outcomes[case.id] = judge(case, read_traces(run, case.id, attempt, case.ep))
        return Ending(outcome.status, outcome.reason, outcome.message, log=outcome.log)

    plan = Plan(
        matrix="self-test",
        shape=SHAPE,
        measure=Measure(),
        profiles={},
        cases=[Planned(case=case) for case in cases],
    )
    write_atomically(run / "plan.json", plan.model_dump_json())
    Supervisor(run, [Todo(case, case.id) for case in cases], device, limits, judged, watcher).execute()
    history = History(Journal(run).read())
    for case in cases:
        if case.id not in outcomes:
            ended = history.counts(case.id)
            outcomes[case.id] = (
                Outcome(ended.status or Status.FAILED, ended.reason, ended.message)
                if ended
                else Outcome(Status.NOT_RUN, message=history.why_not_run(case.id))
            )
    return outcomes


def _not_measured(outcomes: Mapping[str, Outcome]) -> Iterator[Finding]:
    for case_id, outcome in outcomes.items():
        if outcome.status is not Status.ACCEPTED:
            yield Finding(
                stops=True,
                what=f"{case_id} could not be measured: {outcome.reason or outcome.status}: {outcome.message}",
                remedy="moebench doctor, without --self-test, looks for what is missing here",
            )


def _beyond_limits(figures: Sequence[Figure]) -> Iterator[Finding]:
    for one in figures:
        if not one.passed:
            yield Finding(
                stops=True,
                what=f"{one.name}: measured {abs(one.bias):.2%} {'above' if one.bias > 0 else 'below'} what it was; "
                f"the limit is {one.limit:.1%}",
                remedy="end what else runs here, and ask again; what stays is an error of every such figure",
            )


def _held_up(figures: Sequence[Figure]) -> Iterator[Finding]:
    for one in figures:
        if one.name == gauges.ITERATION.name and one.lateness > one.limit:
            yield Finding(
                stops=False,
                what=f"iterations that were to take {one.asked:g} ms took {one.took:.2f} ms: something held ranks up",
                remedy="end what else runs here; where that cannot be, compare by sweep --paired only",
            )
