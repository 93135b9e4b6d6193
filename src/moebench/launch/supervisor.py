"""Runs a plan: one torchrun for each world size, its cases one after the other, a new one after each failure.

Every runnable case gets a journal entry with its ending; only the case that a failure hit is charged with it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moebench.cases.case import Case
from moebench.cases.plan import Plan
from moebench.launch.blame import blame, tail
from moebench.launch.journal import Entry, Journal
from moebench.launch.launch import Launch
from moebench.rank.progress import Event
from moebench.rank.spec import Job, LaunchSpec
from moebench.status import Reason, Status

POLL_S = 0.1
LAUNCH_TRIES = 3


@dataclass(frozen=True)
class Ending:
    """How an attempt at a case ended."""

    status: Status
    reason: Reason | None = None
    message: str | None = None
    iteration_ms: float | None = None


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds: of a launch to come up, of one case, of the whole sweep."""

    start_up_s: float
    case_s: float
    budget_s: float | None = None


class Watcher(Protocol):
    """Who is told what happens, such as a terminal."""

    def launching(self, ranks: int, cases: int, attempt: int) -> None: ...
    def phase(self, case_id: str, phase: str) -> None: ...
    def ended(self, case_id: str, ending: Ending, seconds: float) -> None: ...
    def tick(self) -> None: ...


class Supervisor:
    """`judge(case, attempt)` reads an ended attempt's traces and decides. Must run in the main thread: ranks die
    with the thread that started their torchrun."""

    def __init__(
        self,
        run: Path,
        plan: Plan,
        device: str,
        limits: Limits,
        judge: Callable[[Case, int], Ending],
        watcher: Watcher,
    ) -> None:
        self.run, self.plan, self.device, self.limits = run, plan, device, limits
        self.judge, self.watcher = judge, watcher
        self.journal = Journal(run)
        self.stopping: str | None = None
        """Why no further case is to begin, once that is so."""
        self._started_at = time.monotonic()
        self._recorded: set[str] = set()
        self._launches = 0
        self._launch: Launch | None = None

    def stop(self, why: str) -> None:
        """Begin no further case; the one that runs is finished."""
        self.stopping = self.stopping or why
        if self._launch is not None:
            self._launch.spec.stop_file.touch()

    def execute(self) -> None:
        """Run every runnable case once. Leaves no process behind and no case without an ending, also when
        interrupted by an exception."""
        try:
            self._execute()
        except BaseException:
            for case in self.plan.runnable():
                if case.id not in self._recorded:
                    self._record(case, Ending(Status.NOT_RUN, message=self.stopping or "the sweep was stopped at once"))
            raise

    def _execute(self) -> None:
        cases = self.plan.runnable()
        for ranks in sorted({case.ep for case in cases}):
            pending = sorted((case for case in cases if case.ep == ranks), key=lambda case: (case.workload_id, case.id))
            failures_in_a_row = 0
            while pending and self.stopping is None:
                done = self._launch_once(ranks, pending)
                pending = [case for case in pending if case.id not in done]
                failures_in_a_row = 0 if done else failures_in_a_row + 1
                if failures_in_a_row == LAUNCH_TRIES:
                    self._give_up(ranks, pending)
                    pending = []
            for case in pending:
                self._record(case, Ending(Status.NOT_RUN, message=self.stopping))

    def _launch_once(self, ranks: int, pending: list[Case]) -> set[str]:
        """One launch; the ids of the cases that have an ending after it."""
        self._launches += 1
        name = f"{self._launches:03d}-ep{ranks}"
        spec = LaunchSpec(
            run=self.run,
            name=name,
            jobs=[Job(case_id=case.id, attempt=1) for case in pending],
            device=self.device,
            collective_timeout_s=self.limits.case_s + 30,
        )
        self.watcher.launching(ranks, len(pending), self._launches)
        launch = self._launch = Launch(spec, ranks)
        try:
            return self._follow(launch, pending)
        except BaseException:
            launch.kill(dump_stacks=False)
            raise
        finally:
            self._launch = None

    def _follow(self, launch: Launch, pending: list[Case]) -> set[str]:
        done: set[str] = set()
        queue = list(pending)
        case_began_at = time.monotonic()
        while True:
            status, events = launch.poll()
            self._tell(events)
            while queue and launch.has_ended(queue[0].id):
                case = queue.pop(0)
                now = time.monotonic()
                self._record(case, self.judge(case, 1), launch.spec.name, now - case_began_at)
                done.add(case.id)
                case_began_at = now
            if not launch.is_up:
                case_began_at = time.monotonic()
            if status is not None:
                launch.close()
                break
            overdue = self._overdue(launch, case_began_at)
            if overdue is not None:
                took_s = time.monotonic() - case_began_at
                launch.kill(dump_stacks=True)
                if queue and launch.is_up:
                    self._record(queue[0], Ending(Status.FAILED, Reason.TIMEOUT, overdue), launch.spec.name, took_s)
                    done.add(queue[0].id)
                return done
            if self.limits.budget_s is not None and time.monotonic() - self._started_at > self.limits.budget_s:
                self.stop(f"the time budget of {self.limits.budget_s:g} s was used up")
            self.watcher.tick()
            time.sleep(POLL_S)
        if queue and queue[0].id in launch.begun and not (self.stopping and status == 0):
            took_s = time.monotonic() - case_began_at
            self._record(queue[0], Ending(Status.FAILED, *blame(launch)), launch.spec.name, took_s)
            done.add(queue[0].id)
        return done

    def _tell(self, events: list[tuple[int, Event]]) -> None:
        for rank, event in events:
            if rank == 0 and event.case is not None:
                self.watcher.phase(event.case, event.phase)

    def _overdue(self, launch: Launch, case_began_at: float) -> str | None:
        now = time.monotonic()
        if not launch.is_up:
            if now - launch.started_at > self.limits.start_up_s:
                return f"the launch did not come up within {self.limits.start_up_s:g} s"
            return None
        if now - case_began_at > self.limits.case_s:
            return f"no ending within {self.limits.case_s:g} s; every rank's stack is in logs/{launch.spec.name}"
        return None

    def _give_up(self, ranks: int, pending: list[Case]) -> None:
        last = tail(self.run / "logs" / f"{self._launches:03d}-ep{ranks}" / "torchrun.log")
        message = f"{LAUNCH_TRIES} launches of {ranks} ranks in a row did not come up: {last}"
        for case in pending:
            self._record(case, Ending(Status.FAILED, Reason.CRASHED, message))

    def _record(self, case: Case, ending: Ending, launch: str | None = None, seconds: float = 0.0) -> None:
        self._recorded.add(case.id)
        self.journal.add(
            Entry(
                case=case.id,
                attempt=0 if ending.status is Status.NOT_RUN else 1,
                launch=launch,
                status=ending.status,
                reason=ending.reason,
                message=ending.message,
            )
        )
        self.watcher.ended(case.id, ending, seconds)
