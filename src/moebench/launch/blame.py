"""Which rank struck first when a launch ended badly, and what it said."""

import re
import signal
from pathlib import Path

from moebench.launch.launch import Launch
from moebench.status import Reason

TAIL_LINES = 12
TAIL_BYTES = 16_384

_PEER_LOST = re.compile(r"connection (closed|reset|refused)|closed by peer|broken pipe|peer|timed out", re.IGNORECASE)
"""How a collective reports that some other rank is gone."""


def blame(launch: Launch) -> tuple[Reason, str]:
    """Reason and message of a launch that ended in mid-case: the guilty rank, and the last lines of its log.

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
            return reason, _say(launch, rank, f"was killed by {signal.Signals(-code).name}")
    for rank, event in launch.died:
        if event.error and not _PEER_LOST.search(event.error):
            reason = Reason.OUT_OF_MEMORY if "OutOfMemory" in event.error else Reason.CRASHED
            return reason, f"rank {rank}: {event.error}"
    if failures:
        rank, code = int(failures[0]["rank"]), int(failures[0]["exit_code"])
        return Reason.CRASHED, _say(launch, rank, f"ended with exit status {code}")
    if launch.died:
        rank, event = launch.died[0]
        return Reason.CRASHED, f"rank {rank}: {event.error}"
    ended = launch.exit_status or 0
    how = f"was killed by {signal.Signals(-ended).name}" if ended < 0 else f"ended with status {ended}"
    last = tail(launch.spec.folder / "torchrun.log")
    what = f"torchrun {how}, and no rank said why: a rank may have left without finishing its cases"
    return Reason.CRASHED, what + (f"; its last words: {last}" if last else "")


def _say(launch: Launch, rank: int, what: str) -> str:
    log = launch.rank_log(rank)
    last = tail(log) if log else ""
    return f"rank {rank} {what}" + (f"; its last words: {last}" if last else "")


def tail(path: Path) -> str:
    """The last lines of a log, whatever bytes are in it."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])
