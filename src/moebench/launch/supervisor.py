"""Runs cases: one torchrun for each world size, its cases one after the other, a new one after each failure.

Every attempt has an entry in the journal when it begins and when it ends. Only the case that a failure hit is
charged with it; cases that ended badly are tried again, after all others of their world size.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from moebench.cases.case import Case, alternating
from moebench.cases.fault import Fault
from moebench.errors import MoebenchError
from moebench.launch.blame import blame, blame_hang
from moebench.launch.journal import Entry, Journal
from moebench.launch.launch import Launch
from moebench.launch.logs import tail
from moebench.rank.progress import Event
from moebench.rank.spec import Job, LaunchSpec
from moebench.status import Reason, Status, is_finished

POLL_S = 0.1
LAUNCH_TRIES = 3
DISK_BYTES = 2**16
"""With less than this left a disk is full."""


@dataclass(frozen=True)
class Ending:
    """How an attempt at a case ended. `log`: the guilty rank's last words."""

    status: Status
    reason: Reason | None = None
    message: str | None = None
    iteration_ms: float | None = None
    log: str | None = None


@dataclass(frozen=True)
class Limits:
    """Deadlines in seconds: of a launch to come up, of each case, of the whole sweep; and attempts at a case."""

    start_up_s: float
    case_s: Callable[[Case], float]
    budget_s: float
    attempts: int = 1


class Watcher(Protocol):
    """Who is told what happens, such as a terminal."""

    def launching(self, ranks: int, cases: int, attempt: int) -> None: ...
    def phase(self, case_id: str, phase: str) -> None: ...
    def ended(self, case_id: str, ending: Ending, seconds: float, *, again: bool) -> None:
        """An attempt ended; `again`: the case will be tried once more."""

    def tick(self) -> None: ...


@dataclass(frozen=True)
class Todo:
    """A case to run: its content hash, and the number of its next attempt. Those of a group alternate."""

    case: Case
    key: str
    attempt: int = 1


class Supervisor:
    """`judge(case, attempt)` reads an ended attempt's traces and decides. Must run in the main thread: ranks die
    with the thread that started their torchrun."""

    def __init__(
        self,
        run: Path,
        todo: Sequence[Todo],
        device: str,
        limits: Limits,
        judge: Callable[[Case, int], Ending],
        watcher: Watcher,
        faults: Sequence[Fault] = (),
        held: tuple[int, ...] = (),
        fit_together: Callable[[list[Case]], bool] = lambda group: True,
    ) -> None:
        self.run, self.device, self.limits = run, device, limits
        self.judge, self.watcher = judge, watcher
        self.faults, self._held, self._fit_together = list(faults), held, fit_together
        self.journal = Journal(run)
        self.stopping: str | None = None
        """Why no further case is to begin, once that is so."""
        self.is_over = False
        self._cases = [one.case for one in todo]
        self._keys = {one.case.id: one.key for one in todo}
        self._next = {one.case.id: one.attempt for one in todo}
        self._groups = {case.id: group for group in alternating(self._cases) for case in group}
        self._tries: dict[str, int] = {}
        self._ended: dict[str, Ending] = {}
        self._started_at = time.monotonic()
        self._launches = _last_launch(run)
        self._launch: Launch | None = None

    def stop(self, why: str) -> None:
        """Begin no further case; the one that runs is finished."""
        self.stopping = self.stopping or why
        if self._launch is not None:
            with contextlib.suppress(OSError):
                self._launch.spec.stop_file.touch()

    def execute(self) -> None:
        """Run every case, and those that end badly again, up to the limit of attempts. Leaves no process behind and
        no case without an ending, also when interrupted by an exception.

        Raises MoebenchError when the run folder cannot be written any more; what was measured is in it.
        """
        try:
            for ranks in sorted({case.ep for case in self._cases}):
                self._execute(ranks)
            self._rest_was_not_run(self.stopping)
        except OSError as error:
            raise MoebenchError(
                f"{error.filename or self.run}: {error.strerror}: the sweep ends here. {len(self._ended)} of "
                f"{len(self._cases)} cases have ended and are kept. Make room, then go on: "
                f"moebench sweep --resume {self.run}"
            ) from error
        except BaseException:
            with contextlib.suppress(OSError):
                self._rest_was_not_run(self.stopping or "the sweep was stopped at once")
            raise
        finally:
            self.is_over = True

    def _rest_was_not_run(self, why: str | None) -> None:
        for case in self._cases:
            if case.id not in self._ended:
                self._end(case, Ending(Status.NOT_RUN, message=why))

    def _execute(self, ranks: int) -> None:
        """The cases of one world size; in each round those that have no ending yet, or a bad one."""
        mine = [case for case in self._cases if case.ep == ranks]
        waiting = sorted(mine, key=lambda case: (case.workload_id, case.id))
        while waiting and self.stopping is None:
            if not self._round(ranks, waiting):
                return
            waiting = [case for group in alternating(waiting) if any(map(self._again, group)) for case in group]

    def _round(self, ranks: int, pending: list[Case]) -> bool:
        """One attempt at each case, in as many launches as it takes; False where launches do not come up."""
        failures_in_a_row = 0
        while pending and self.stopping is None:
            done, last = self._launch_once(ranks, pending)
            pending = [case for case in pending if case.id not in done and not self._waits(case)]
            failures_in_a_row = 0 if done else failures_in_a_row + 1
            if failures_in_a_row == LAUNCH_TRIES:
                self._give_up(ranks, pending, last)
                return False
        return True

    def _waits(self, case: Case) -> bool:
        """For the next round, in which another case of its group is tried again: alone it would have none beside it."""
        others = [other for other in self._groups[case.id] if other is not case and other.id in self._ended]
        return any(map(self._again, others))

    def _again(self, case: Case) -> bool:
        ending = self._ended.get(case.id)
        if ending is None:
            return True
        return not is_finished(ending.status, ending.reason) and self._tries[case.id] < self.limits.attempts

    def _launch_once(self, ranks: int, pending: list[Case]) -> tuple[set[str], Ending]:
        """One launch: the ids of the cases that have an ending after it, and how it ended if it did not come up."""
        self._launches += 1
        name, groups = f"{self._launches:03d}-ep{ranks}", alternating(pending)
        launch_name = f"{self.run.name}/{name}-{secrets.token_hex(4)}"  # no other launch, of whatever run, has it
        numbered = [(f"{launch_name}/{number}", group) for number, group in enumerate(groups, 1)]
        spec = LaunchSpec(
            run=self.run,
            name=name,
            jobs=[job for group_name, group in numbered for job in self._jobs(group, group_name)],
            device=self.device,
            collective_timeout_s=max(map(self._deadline_s, groups)) + 30,
            faults=self.faults,
        )
        self.watcher.launching(ranks, len(pending), self._launches)
        launch = self._launch = Launch(spec, ranks, self._held)
        try:
            return self._follow(launch, groups)
        except BaseException:
            launch.kill(dump_stacks=False)
            raise
        finally:
            self._launch = None

    def _jobs(self, group: list[Case], name: str) -> list[Job]:
        paired = group[0].measure.paired
        together = not paired or self._fit_together(group)
        return [
            Job(
                case_id=case.id,
                attempt=self._next[case.id],
                group=name if paired else None,
                together=together,
            )
            for case in group
        ]

    def _deadline_s(self, group: list[Case]) -> float:
        return sum(map(self.limits.case_s, group))

    def _follow(self, launch: Launch, groups: list[list[Case]]) -> tuple[set[str], Ending]:
        done: set[str] = set()
        queue, open_cases = list(groups), dict[str, Case]()
        began_at = time.monotonic()
        while True:
            status, events = launch.poll()
            self._tell(events)
            while queue:
                for case in queue[0]:
                    if case.id in launch.begun and case.id not in open_cases:
                        open_cases[case.id] = case
                        self._begin(case, launch)
                if not all(launch.has_ended(case.id) for case in queue[0]):
                    break
                ended, took_s = queue.pop(0), time.monotonic() - began_at
                for case in ended:
                    self._end(case, self.judge(case, self._next[case.id]), launch, took_s / len(ended))
                    done.add(case.id)
                open_cases.clear()
                began_at = time.monotonic()
            if not launch.is_up:
                began_at = time.monotonic()
                if self.stopping and status is None:
                    launch.kill(dump_stacks=False)
                    return done, Ending(Status.NOT_RUN, message=self.stopping)
            if status is not None:
                launch.close()
                break
            overdue = self._overdue(launch, queue[0] if queue else [], began_at)
            if overdue is not None:
                took_s = time.monotonic() - began_at
                launch.kill(dump_stacks=True)
                if open_cases:
                    what, log = blame_hang(launch)
                    message = f"{overdue}: {what}; every rank's stack is in logs/{launch.spec.name}"
                    ending = Ending(Status.FAILED, Reason.TIMEOUT, message, log=log)
                    done.add(self._charge(launch, open_cases, ending, took_s))
                    return done, ending
                return done, Ending(
                    Status.FAILED, Reason.TIMEOUT, overdue, log=tail(launch.spec.folder / "torchrun.log")
                )
            if time.monotonic() - self._started_at > self.limits.budget_s:
                self.stop(f"the time budget of {self.limits.budget_s:g} s was used up")
            self.watcher.tick()
            time.sleep(POLL_S)
        reason, message, log = blame(launch)
        ending = Ending(Status.FAILED, reason, message, log=log)
        if open_cases and not (self.stopping and status == 0):
            self._refuse_lost_folder()
            done.add(self._charge(launch, open_cases, ending, time.monotonic() - began_at))
        return done, ending

    def _charge(self, launch: Launch, open_cases: dict[str, Case], ending: Ending, seconds: float) -> str:
        """The case that a failure hit: of those under way, the one at which the rank was that was heard of least
        recently. The attempts at the others are given up. Its id."""
        case = open_cases.get(launch.last_heard_case() or "", next(iter(open_cases.values())))
        for other in open_cases.values():
            if other is not case:
                self._next[other.id] += 1
        self._end(case, ending, launch, seconds)
        return case.id

    def _refuse_lost_folder(self) -> None:
        """Ranks that cannot write fail in many ways, none of which is their case's."""
        if not (self.run / "plan.json").exists():
            raise OSError(errno.ENOENT, "the run folder was moved or emptied", str(self.run))
        disk = os.statvfs(self.run)
        if disk.f_bavail * disk.f_frsize < DISK_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.run))

    def _tell(self, events: list[tuple[int, Event]]) -> None:
        for rank, event in events:
            if rank == 0 and event.case is not None:
                self.watcher.phase(event.case, event.phase)

    def _overdue(self, launch: Launch, group: list[Case], began_at: float) -> str | None:
        now = time.monotonic()
        if not launch.is_up:
            late = now - launch.started_at > self.limits.start_up_s
            return f"the launch did not come up within {self.limits.start_up_s:g} s" if late else None
        limit_s = self._deadline_s(group) if group else self.limits.start_up_s
        of = f" of {len(group)} cases together" if len(group) > 1 else ""
        return f"no ending{of} within {limit_s:g} s" if now - began_at > limit_s else None

    def _give_up(self, ranks: int, pending: list[Case], last: Ending) -> None:
        """The first case is charged: what the others would do cannot be known."""
        message = f"{LAUNCH_TRIES} launches of {ranks} ranks in a row did not come up"
        first, *others = pending
        self._begin(first, None)
        self._tries[first.id] = self.limits.attempts
        self._end(first, Ending(Status.FAILED, last.reason, f"{message}: {last.message}", log=last.log))
        for case in others:
            self._end(case, Ending(Status.NOT_RUN, message=message))

    def _begin(self, case: Case, launch: Launch | None) -> None:
        name = launch.spec.name if launch else None
        self.journal.add(
            Entry(
                case=case.id,
                attempt=self._next[case.id],
                launch=name,
                key=self._keys[case.id],
                injected=[str(fault) for fault in self.faults if fault.strikes(case, self._next[case.id])] or None,
            )
        )

    def _end(self, case: Case, ending: Ending, launch: Launch | None = None, seconds: float = 0.0) -> None:
        not_run = ending.status is Status.NOT_RUN
        self.journal.add(
            Entry(
                case=case.id,
                attempt=0 if not_run else self._next[case.id],
                launch=launch.spec.name if launch else None,
                key=None if not_run else self._keys[case.id],
                status=ending.status,
                reason=ending.reason,
                message=ending.message,
                log=ending.log or None,
            )
        )
        self._ended[case.id] = ending
        if not not_run:
            self._tries[case.id] = self._tries.get(case.id, 0) + 1
            self._next[case.id] += 1
        again = not not_run and self.stopping is None and self._again(case)
        self.watcher.ended(case.id, ending, seconds, again=again)


def _last_launch(run: Path) -> int:
    """The number of the last launch that an earlier sweep of this run made, whether its logs are still there or not."""
    names = [path.name for path in (run / "logs").glob("*-ep*")]
    names += [line.launch for line in Journal(run).read() if isinstance(line, Entry) and line.launch]
    numbers = [name.partition("-")[0] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
