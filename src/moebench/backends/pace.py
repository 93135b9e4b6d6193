"""How long a rank of the `spin` backend takes: known before anything is measured."""

from dataclasses import dataclass

from moebench.cases.case import Case

MS_PER_F = 1 / 8
"""Milliseconds of a layer's forward for each unit of F: 1 ms at F=8, 16 ms at F=128."""

BACKWARD = 2.0
"""Backward takes so many times as long as forward."""


@dataclass(frozen=True)
class Pace:
    """What makes a time differ from F / 8 ms forward and F / 4 ms backward, in each layer."""

    factor: float = 1.0
    """Of forward and backward."""
    skew_ms: float = 0.0
    """Which the last rank takes longer than the others, forward."""
    drift_ms: float = 0.0
    """Which an iteration takes longer than the one before, forward."""
    outlier_every: int | None = None
    outlier_ms: float = 0.0
    """Which every so many-th iteration takes longer, forward."""
    sent_bytes: int = 0
    """Which a rank sends to each other one, forward, within that time."""

    def forward_ms(self, case: Case, rank: int, iteration: int) -> float:
        """Of one layer. Iterations count from 0 at set-up: checks and warm-ups have theirs."""
        ms = self.factor * MS_PER_F * case.shape.F + self.drift_ms * iteration
        if rank == case.ep - 1:
            ms += self.skew_ms
        if self.outlier_every is not None and iteration % self.outlier_every == 0:
            ms += self.outlier_ms
        return ms

    def backward_ms(self, case: Case) -> float:
        """Of one layer, on every rank and in every iteration."""
        return self.factor * BACKWARD * MS_PER_F * case.shape.F
