"""What must be known of a run of the real mok beside its times: which mok it was, and how it was asked."""

from dataclasses import dataclass

from moebench.backends.mok.library_api import Features
from moebench.backends.mok.library_plan import Settings
from moebench.cases.case import Case


@dataclass(frozen=True)
class Note:
    """For the trace's environment; `dataclasses.asdict` makes it JSON."""

    library: Features
    settings: Settings
    schedule_capacity: int
    most_rows: int
    """Padded rows of the fullest rank in the fullest layer, by the host's count."""
    scope: str
    """What the timed forward is, since mok has no mode for inference."""
    workspace_bytes: int
    """Symmetric memory of a rank, which the allocator's peak does not contain."""
    copied_weight_bytes: int
    """Weights held a second time, in mok's layout, which the allocator's peak contains."""
    joined_gradient_bytes: int
    """Gradients of gate and up that the timed backward copies, once an iteration, to join them as w13 is."""


def workspace_bytes(case: Case) -> int:
    """Bytes of mok's symmetric workspace on one rank: buffers of x, dy, combine, dx, weights and gathered ids."""
    s = case.shape
    return 4 * s.T * s.D * (1 + s.K) + 8 * s.T * s.K + 4 * case.ep * s.T * s.K


def joined_gradient_bytes(case: Case) -> int:
    """Bytes of w13's gradients of all layers, routed and shared."""
    s = case.shape
    return case.layers * 2 * 2 * s.F * s.D * (case.experts_per_rank + 1) if case.training else 0
