"""Whether a case can run on a machine, and if not, why."""

from collections.abc import Sequence

from moebench.cases.capacity import why_capacity_refuses
from moebench.cases.case import Case
from moebench.cases.machine import Machine
from moebench.cases.memory import memory_bytes_per_rank, together_bytes_per_rank

GIB = 2**30


def needed_bytes_per_rank(case: Case, machine: Machine) -> int | None:
    """Modeled bytes that a rank takes on a machine: the case, and the rank's own process.

    None for an impossible case, which has no rows to model.
    """
    if case.unsupported:
        return None
    return memory_bytes_per_rank(case) + machine.process_bytes()


def why_not_here(case: Case, machine: Machine) -> str | None:
    """The reason why a case cannot run on a machine, with the figures; None if it can.

    In order: the case is impossible, its rows overflow a hard limit, it needs more memory than there is.
    """
    needed = needed_bytes_per_rank(case, machine)
    if needed is None:
        return case.unsupported
    return why_capacity_refuses(case) or _why_no_room(case.ep, needed, machine)


def fit_together(cases: Sequence[Case], machine: Machine) -> bool:
    """Whether cases of one workload can be set up at once on a machine. Each of them can run here alone."""
    needed = together_bytes_per_rank(cases) + machine.process_bytes()
    return len(cases) == 1 or _why_no_room(cases[0].ep, needed, machine) is None


def _why_no_room(ranks: int, needed_bytes: int, machine: Machine) -> str | None:
    """Ranks take GPUs in turn, and share them if there are too few; CPU ranks share the host's memory."""
    if machine.gpu_bytes:
        sharing = -(-ranks // len(machine.gpu_bytes))
        smallest = min(machine.gpu_bytes[:ranks])
        if sharing * needed_bytes <= smallest:
            return None
        each = f"a rank needs {needed_bytes / GIB:.1f} GiB (modeled)"
        shared = f", {sharing} ranks share a GPU" if sharing > 1 else ""
        return f"{each}{shared}, and the GPU has {smallest / GIB:.1f} GiB"
    if ranks * needed_bytes <= machine.available_bytes:
        return None
    return (
        f"{ranks} ranks of {needed_bytes / GIB:.1f} GiB (modeled) need {ranks * needed_bytes / GIB:.1f} GiB, "
        f"this machine has {machine.available_bytes / GIB:.1f} GiB available"
    )
