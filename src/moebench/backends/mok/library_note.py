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


def workspace_bytes(case: Case) -> int:
    """Bytes of mok's symmetric workspace on one rank: buffers of x, dy, combine, dx, weights and gathered ids."""
    s = case.shape
    return 4 * s.T * s.D * (1 + s.K) + 8 * s.T * s.K + 4 * case.ep * s.T * s.K
