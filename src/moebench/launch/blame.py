"""Which rank struck first when a launch ended badly, and what it said."""

import re
import signal

from moebench.launch.hang import who_hangs
from moebench.launch.launch import Launch
from moebench.launch.logs import tail
from moebench.status import Reason

_PEER_LOST = re.compile(r"connection (closed|reset|refused)|closed by peer|broken pipe|peer|timed out", re.IGNORECASE)
"""How a collective reports that some other rank is gone."""


def blame(launch: Launch) -> tuple[Reason, str, str]:
    """Reason and message of a launch that ended in mid-case, and the last lines of the guilty rank's log.

    A rank killed by a signal comes first, then the earliest rank whose own error does not merely say that a
    peer was lost, then one that ended without a word, then whatever torchrun saw first.
    """
    spoke = {rank for rank, _ in launch.died}
    # torchrun's times are whole seconds: within one, a rank that only lost its peer must not come first.
    failures = sorted(launch.failures(), key=lambda failure: (failure["rank"] in spoke, failure["time"]))
    for failure in failures:
        code, rank = int(failure["exit_code"]), int(failure["rank"])
        if code < 0 and code != -signal.SIGTERM:
            reason = Reason.OUT_OF_MEMORY if code == -signal.SIGKILL and launch.oom_killed() else Reason.CRASHED
            return reason, f"rank {rank} was killed by {_name(-code)}", log_of(launch, rank)
    for rank, event in launch.died:
        if event.error and not _PEER_LOST.search(event.error):
            return event.reason or Reason.CRASHED, f"rank {rank}: {event.error}", log_of(launch, rank)
    if failures and failures[0]["rank"] not in spoke:
        rank, code = int(failures[0]["rank"]), int(failures[0]["exit_code"])
        how = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit status {code}"
        return Reason.CRASHED, f"rank {rank} {how}", log_of(launch, rank)
    if launch.died:
        rank, event = launch.died[0]
        silent = sorted(set(launch.pids) - spoke - {int(failure["rank"]) for failure in failures})
        if silent:
            what = f"rank {', '.join(map(str, silent))} left without a word; rank {rank}: {event.error}"
            return Reason.CRASHED, what, log_of(launch, silent[0])
        return event.reason or Reason.CRASHED, f"rank {rank}: {event.error}", log_of(launch, rank)
    ended = launch.exit_status or 0
    how = f"was killed by {_name(-ended)}" if ended < 0 else f"ended with status {ended}"
    what = f"torchrun {how}, and no rank said why: a rank may have left without finishing its cases"
    return Reason.CRASHED, what, tail(launch.spec.folder / "torchrun.log")


def blame_hang(launch: Launch) -> tuple[str, str]:
    """What each rank of a hung launch was doing, and the stack, or else the last words, of the one that held it up."""
    stacks = launch.stacks()
    guilty, what = who_hangs(stacks)
    if not guilty:
        return what, ""
    stack = stacks[guilty[0]]
    return what, log_of(launch, guilty[0]) if stack is None else stack.innermost


def log_of(launch: Launch, rank: int) -> str:
    log = launch.rank_log(rank)
    return tail(log) if log else ""


def _name(number: int) -> str:
    """SIGKILL, or `signal 40` for one that has no name here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
