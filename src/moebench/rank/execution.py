"""One execution: one case on this rank, phase by phase, ending in one trace.

Before the first collective of each phase the ranks agree that all can go on; a failure found there is recorded
by every rank and the launch goes on with the next case. A failure after that cannot be agreed on, because peers
already sit in a collective: the exception leaves `execute`, and the rank records it and exits.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TypeVar

import torch
import torch.distributed as dist

from moebench.backends.faulty import with_faults
from moebench.backends.protocol import Backend, Setup, Stages
from moebench.backends.registry import backend_of
from moebench.cases.case import Case, Precision
from moebench.cases.fault import Fault
from moebench.cases.routing import realised_imbalance, remote_rows, routing_sha256
from moebench.rank.agree import Verdict, agree
from moebench.rank.check import check, first_failure
from moebench.rank.counters import traffic_source
from moebench.rank.environment import environment
from moebench.rank.exchange import Exchange
from moebench.rank.failure import reason_of
from moebench.rank.graph import GraphStep, capture
from moebench.rank.inputs import Inputs, make_inputs, make_routing, renew_x
from moebench.rank.instruments import Instruments
from moebench.rank.memory import Peak, PeakMemory
from moebench.rank.progress import Progress
from moebench.rank.step import Step
from moebench.rank.timing import Settled, flush_bytes, settle, time_window, warm_up
from moebench.rank.trace import RankTrace, Realised, Window, estimator
from moebench.status import Reason, Status

T = TypeVar("T")

ENDINGS: dict[Verdict, tuple[Status, Reason | None]] = {
    Verdict.UNSUPPORTED: (Status.UNSUPPORTED, None),
    Verdict.CRASHED: (Status.FAILED, Reason.CRASHED),
    Verdict.OUT_OF_MEMORY: (Status.FAILED, Reason.OUT_OF_MEMORY),
    Verdict.INCORRECT: (Status.REJECTED, Reason.INCORRECT),
}
STACK_FRAMES = 6
"""Innermost frames that a trace keeps of an exception."""

VERDICTS = {Reason.CRASHED: Verdict.CRASHED, Reason.OUT_OF_MEMORY: Verdict.OUT_OF_MEMORY}


class StopAsked(Exception):
    """The supervisor asked the launch to end before this case."""


class Ended(Exception):
    """All ranks agreed that this case ends here."""


class Execution:
    """One attempt at one case on this rank. `trace` is complete after `run` returns."""

    def __init__(
        self,
        case: Case,
        attempt: int,
        rank: int,
        device: torch.device,
        progress: Progress,
        stop: Callable[[], bool],
        instruments: Instruments | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        self.case, self.rank, self.device = case, rank, device
        self.progress, self.stop = progress, stop
        self.instruments = instruments or Instruments()
        self.faults = [fault for fault in faults if fault.strikes(case, attempt)]
        self.graph: GraphStep | None = None
        self.inputs: Inputs | None = None
        self.memory: PeakMemory | None = None
        self.exchange = Exchange(rank, case.ep)
        self.trace = RankTrace(
            case=case,
            case_id=case.id,
            attempt=attempt,
            rank=rank,
            status=Status.FAILED,
            phase="support",
            injected=[str(fault) for fault in self.faults],
            implementation="portable",
            estimator=estimator(case.measure, on_gpu=device.type == "cuda"),
            environment=environment(device) | self.instruments.about,
        )

    def run(self) -> None:
        """All phases. Raises StopAsked, or whatever struck after the ranks had agreed to go on."""
        with suppress(Ended), self.prepared() as step:
            self._measure(step)

    @contextmanager
    def prepared(self) -> Iterator[Step]:
        """The step of a backend that is supported and set up; closed in the end. Raises Ended where it cannot be."""
        self.find_support()
        with self.set_up() as step:
            yield step

    @contextmanager
    def set_up(self) -> Iterator[Step]:
        """The step of a backend set up anew, with the inputs that this execution has; closed in the end."""
        self.enter("set-up")
        verdict, backend = self._alone(self._set_up)
        try:
            self._agree(verdict)
            assert backend is not None
            assert self.inputs is not None
            yield Step(self.case, backend, self.inputs)
        finally:
            if self.graph is not None:
                self.graph.release()
                self.graph = None
            if backend is not None:
                self._close(backend)

    def _close(self, backend: Backend) -> None:
        """A backend that cannot close has been measured all the same; its complaint goes to the log."""
        try:
            backend.close()
        except Exception:
            traceback.print_exc()

    def enter(self, phase: str) -> None:
        self.trace.phase = phase
        self.progress.tell(phase, self.case.id, self.trace.attempt)

    def record(self, error: BaseException) -> Reason:
        """What went wrong on this rank, for its trace and its log."""
        traceback.clear_frames(error.__traceback__)  # what they hold may be the memory that a trace needs
        traceback.print_exception(error)
        self.trace.message = f"{type(error).__name__} in {self.trace.phase}: {error}"
        self.trace.stack = "".join(traceback.format_exception(error, limit=-STACK_FRAMES))
        return reason_of(error)

    def _alone(self, work: Callable[[], T]) -> tuple[Verdict, T | None]:
        """Work without collectives: an exception becomes a verdict that the others will hear."""
        try:
            return Verdict.OK, work()
        except (Exception, SystemExit) as error:
            return VERDICTS[self.record(error)], None

    def _agree(self, mine: Verdict) -> None:
        """Go on if every rank can; otherwise end the case on all ranks, each knowing whom it hit."""
        verdicts = agree(mine, self.rank, self.case.ep, self.device)
        if Verdict.STOP in verdicts:
            raise StopAsked
        worst = max(verdicts)
        if worst is Verdict.OK:
            return
        self.trace.status, self.trace.reason = ENDINGS[worst]
        if self.trace.message is None:
            self.trace.message = f"rank {verdicts.index(worst)} could not go on in {self.trace.phase}"
        raise Ended

    def find_support(self) -> None:
        """Raises Ended where a rank cannot do the case, StopAsked where none is to be begun."""
        self.enter("support")
        self.memory = self.memory or PeakMemory(self.device)
        verdict, backend_class = self._alone(self._backend_class)
        self._class = backend_class
        if backend_class is not None:
            self.trace.implementation = backend_class.implementation
            self.trace.host_known_splits = backend_class.host_known_splits
            self.trace.shared_schedule = backend_class.shared_schedule if self.case.shape.S else "none"
            self.trace.fast_math = backend_class.fast_math and self.case.precision is Precision.MXFP8
            self.trace.emulated = backend_class.emulated and self.case.precision is not Precision.BF16
            verdict, why_not = self._alone(
                lambda: (
                    backend_class.missing() or backend_class.unsupported(self.case) or self._why_no_graph(backend_class)
                )
            )
            if why_not is not None:
                self.trace.message, verdict = why_not, Verdict.UNSUPPORTED
        self._agree(Verdict.STOP if self.stop() else verdict)

    def _backend_class(self) -> type[Backend]:
        mine = [fault for fault in self.faults if fault.rank in (None, self.rank)]
        return with_faults(backend_of(self.case), mine, self.device, lambda: self.trace.phase)

    def _why_no_graph(self, backend_class: type[Backend]) -> str | None:
        if not self.case.measure.cuda_graph:
            return None
        if self.device.type != "cuda":
            return "CUDA graphs were asked for, and this rank runs on the CPU"
        if self.case.ep > 1 and dist.get_backend() != "nccl":
            return "collectives over gloo cannot be captured in a CUDA graph"
        return backend_class.why_no_cuda_graph(self.case)

    def _set_up(self) -> Backend:
        assert self._class is not None
        case = self.case
        ids_PTK = make_routing(case) if self.inputs is None else self.inputs.ids_PTK
        self.trace.realised = Realised(
            world_size=self.exchange.world_size,
            routing_sha256=routing_sha256(ids_PTK),
            imbalance=[realised_imbalance(ids, case.shape.E) for ids in ids_PTK],
            rows_received=[int((ids // case.experts_per_rank == self.rank).sum()) for ids in ids_PTK],
            remote_rows_sent=[int(remote_rows(ids, case.shape.E)[self.rank]) for ids in ids_PTK],
        )
        self.inputs = self.inputs or make_inputs(case, self.rank, self.device, ids_PTK)
        return self._class(
            Setup(
                case=case,
                rank=self.rank,
                device=self.device,
                exchange=self.exchange,
                weights=self.inputs.weights,
                ids_PTK=ids_PTK,
                stages=Stages(),
            )
        )

    def _measure(self, step: Step) -> None:
        measure, trace = self.case.measure, self.trace
        self.check_before(step)
        self.enter("timing")
        assert self.memory is not None
        self.memory.reset()
        step = self.warmed_up(step)
        self.instruments.begin()
        for _ in range(measure.windows):
            trace.windows.append(self.window(step))
        self._note_memory(self.memory.read())
        (seen,) = self.instruments.end(trace.windows)
        trace.environment |= seen
        self.note_work(step)
        self.recheck(step)

    def alone(self, step: Step) -> None:
        """What a case that is timed together with others does by itself: check, peak memory, bytes by kind."""
        self.check_before(step)
        self.enter("timing")
        assert self.memory is not None
        self.memory.reset()
        warm_up(step, max(1, self.case.measure.warmups))
        self._note_memory(self.memory.read())
        self.note_work(step)

    def check_before(self, step: Step) -> None:
        self.enter("check")
        self._check(step, "before")

    def warmed_up(self, step: Step) -> Step:
        """The step to be timed: warm, and captured where CUDA graphs were asked for."""
        self._note_warm_up(settle(step, self.device))
        return self._capture(step) if self.case.measure.cuda_graph else step

    def _note_warm_up(self, warm_up: Settled) -> None:
        """Of several, as before each window of a case that is set up anew for it, the worst counts."""
        self.trace.warmups = max(self.trace.warmups or 0, warm_up.warmups)
        if self.trace.settled is not False:
            self.trace.settled = warm_up.settled

    def window(self, step: Step) -> Window:
        return time_window(step, self.case.measure.iterations, self.device, self.exchange, self.instruments)

    def _note_memory(self, peak: Peak) -> None:
        peak = peak.without(flush_bytes(self.case.measure, self.device))
        self.trace.memory_source = peak.source
        self.trace.peak_allocated_bytes, self.trace.peak_reserved_bytes = peak.allocated_bytes, peak.reserved_bytes

    def note_work(self, step: Step) -> None:
        """What one untimed iteration sends, and what the backend says of itself."""
        trace, backend = self.trace, step.backend
        self.exchange.ledger.clear()
        warm_up(step, 1)
        trace.tx_bytes_by_kind = dict(self.exchange.ledger.tx_bytes)
        trace.capacity = backend.capacity()
        if (note := backend.note()) is not None:
            trace.environment["library"] = asdict(note)

    def recheck(self, step: Step) -> None:
        """The check after timing, with other values in x; the case is then accepted, as far as this rank knows."""
        trace = self.trace
        trace.traffic_source = traffic_source(trace.windows, self.case.ep, self.device)
        self.enter("recheck")
        renew_x(step.inputs, self.case, self.rank)
        self._check(step, "after")
        trace.status, trace.phase = Status.ACCEPTED, "done"

    def _capture(self, step: Step) -> Step:
        """The step as CUDA graphs, or the end of the case on all ranks: never eager in its place."""
        self.enter("capture")
        verdict, self.graph = self._alone(lambda: capture(step, self.exchange, self.device))
        self._agree(verdict)
        assert self.graph is not None
        self.trace.cuda_graph = True
        self.enter("timing")
        self._note_warm_up(settle(self.graph, self.device))
        return self.graph

    def _check(self, step: Step, when: str) -> None:
        checks = check(step, self.exchange, when)
        self.trace.checks += checks
        wrong = first_failure(checks)
        if wrong is not None:
            self.trace.message = wrong
        self._agree(Verdict.OK if wrong is None else Verdict.INCORRECT)
