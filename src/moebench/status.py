"""How a planned case ended. One enum, used by ranks, supervisor, reducer and report alike."""

from enum import StrEnum


class Status(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    """Measured, but not to be trusted."""
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    NOT_RUN = "not-run"


class Reason(StrEnum):
    INCORRECT = "incorrect"
    INVALID_TIMING = "invalid-timing"
    SPREAD = "spread"
    THROTTLED = "throttled"
    INCOMPLETE = "incomplete"
    WRONG_WORKLOAD = "wrong-workload"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"


REASONS: dict[Status, frozenset[Reason]] = {
    Status.ACCEPTED: frozenset(),
    Status.REJECTED: frozenset(
        {
            Reason.INCORRECT,
            Reason.INVALID_TIMING,
            Reason.SPREAD,
            Reason.THROTTLED,
            Reason.INCOMPLETE,
            Reason.WRONG_WORKLOAD,
        }
    ),
    Status.UNSUPPORTED: frozenset(),
    Status.FAILED: frozenset({Reason.CRASHED, Reason.TIMEOUT, Reason.OUT_OF_MEMORY}),
    Status.NOT_RUN: frozenset(),
}
"""Reasons that each status may carry; the others carry a message only."""


def is_finished(status: Status | None, reason: Reason | None) -> bool:
    """Whether nothing but a wish to repeat it leads to another attempt at a case."""
    return status in (Status.ACCEPTED, Status.UNSUPPORTED) or reason is Reason.INCORRECT
