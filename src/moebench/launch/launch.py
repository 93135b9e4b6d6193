"""One torchrun on this host: started, followed through the events of its ranks, ended."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from pydantic import TypeAdapter

from moebench.launch import torchrun
from moebench.launch.hang import Stack, read_stack
from moebench.launch.leftovers import end_leftovers
from moebench.launch.logs import cap
from moebench.launch.oom import oom_kills
from moebench.rank.progress import Event, Follower
from moebench.rank.spec import LaunchSpec
from moebench.rank.trace import write_atomically

_FAILURES = TypeAdapter(list[dict[str, float]])
CAP_EVERY_S = 0.5
STACK_DUMP_S = 0.5
TERM_S = 5.0


class Launch:
    """Runs the jobs of a spec on `ranks` processes. `begun` and `ended` map a case id to the ranks that said so.

    torchrun keeps the descriptors in `held` open as long as it lives.
    """

    def __init__(self, spec: LaunchSpec, ranks: int, held: tuple[int, ...] = ()) -> None:
        self.spec, self.ranks = spec, ranks
        self.started_at = time.monotonic()
        self.pids: dict[int, int] = {}
        self.begun: dict[str, set[int]] = {}
        self.ended: dict[str, set[int]] = {}
        self.died: list[tuple[int, Event]] = []
        self._last: dict[int, Event] = {}
        self._oom_kills_before = oom_kills()
        spec.folder.mkdir(parents=True)
        write_atomically(spec.folder / "launch.json", spec.model_dump_json(indent=1))
        self._follower = Follower(spec.folder / "events")
        self._log = (spec.folder / "torchrun.log").open("ab")
        self._capped_at = self.started_at
        self._process = subprocess.Popen(
            torchrun.command(ranks, spec.folder, spec.name, "moebench.rank", spec.folder / "launch.json"),
            env=torchrun.environment(ranks, spec.run),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=held,
            start_new_session=True,
        )

    @property
    def is_up(self) -> bool:
        """A rank has begun a case, so all ranks have met."""
        return bool(self.begun)

    def poll(self) -> tuple[int | None, list[tuple[int, Event]]]:
        """torchrun's exit status, None while it runs, and the events since the last call."""
        status = self._process.poll()
        events = self._follower.new_events()
        for rank, event in events:
            self.pids[rank] = event.pid
            if event.phase == "died":
                self.died.append((rank, event))
            elif event.case is not None:
                self._last[rank] = event
                into = self.ended if event.phase == "ended" else self.begun
                into.setdefault(event.case, set()).add(rank)
        if time.monotonic() - self._capped_at > CAP_EVERY_S:
            cap(self.spec.folder)
            self._capped_at = time.monotonic()
        return status, events

    @property
    def exit_status(self) -> int | None:
        """torchrun's; negative: the signal that killed it."""
        return self._process.returncode

    def last_heard_case(self) -> str | None:
        """Where the rank was that was heard of least recently: a rank that died or hangs has fallen behind."""
        return min(self._last.values(), key=lambda event: event.time).case if self._last else None

    def has_ended(self, case_id: str) -> bool:
        return len(self.ended.get(case_id, ())) == self.ranks

    def kill(self, dump_stacks: bool) -> None:
        """End torchrun and all ranks; ranks die with their torchrun, whatever they are doing."""
        if dump_stacks:
            for pid in self.pids.values():
                _signal_rank(pid, signal.SIGUSR1)
            time.sleep(STACK_DUMP_S)
        self._process.terminate()
        try:
            self._process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            for pid in self.pids.values():
                _signal_rank(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self.close()

    def close(self) -> None:
        """After torchrun has ended."""
        self._process.wait()
        self._log.close()
        end_leftovers(self.spec.run)
        cap(self.spec.folder)

    def stacks(self) -> dict[int, Stack | None]:
        """What each rank was doing when it was told to dump its stack."""
        logs = {rank: self.rank_log(rank) for rank in range(self.ranks)}
        return {rank: read_stack(log) if log else None for rank, log in logs.items()}

    def failures(self) -> list[dict[str, float]]:
        """What torchrun saw: rank, exit_code (negative: a signal) and time of each failed rank."""
        try:
            found = _FAILURES.validate_json((self.spec.folder / "failures.json").read_bytes())
        except (OSError, ValueError):
            return []
        return [failure for failure in found if failure.keys() >= {"rank", "exit_code", "time"}]

    def oom_killed(self) -> bool:
        """Whether the kernel has killed a process for want of memory since this launch began."""
        return oom_kills() > self._oom_kills_before

    def rank_log(self, rank: int) -> Path | None:
        """stderr of a rank."""
        found = sorted((self.spec.folder / "ranks").glob(f"*/attempt_0/{rank}/stderr.log"))
        return found[-1] if found else None


def _signal_rank(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        if _is_rank(pid):
            os.kill(pid, number)


def _is_rank(pid: int) -> bool:
    """Guard against a recycled process id, where the system tells command lines."""
    try:
        return b"moebench" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()
