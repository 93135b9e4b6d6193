"""What the real dist_moe cannot do: sizes that its kernels refuse, and rows that its scratch cannot hold."""

from collections.abc import Sequence

import numpy as np

from moebench.backends.dist_moe.capacity import occupied_rows, why_rows_do_not_fit
from moebench.cases.case import Case, Precision
from moebench.cases.routing import Ids

TRAINING_RANKS, INFERENCE_RANKS = 512, 256
"""ep must divide these: powers of two up to them."""
MULTIPLES = {
    Precision.BF16: {"D": 64},
    Precision.MXFP8: {"D": 128, "F": 128},
    Precision.NVFP4: {"D": 256, "F": 256},
}
"""Of mxfp8 the library's Config checks 32 only and leaves the rest to the first layer."""
NVFP4_MOST = {"D": 16384, "F": 8192}


def why_library_cannot(case: Case) -> str | None:
    """The reason why dist_moe 0.1.0 cannot do a case on any machine, or None. Needs no library."""
    widths = {"D": case.shape.D, "F": case.shape.F}
    ranks = TRAINING_RANKS if case.training else INFERENCE_RANKS
    if ranks % case.ep:
        return f"dist_moe needs ep to be a power of two up to {ranks} in {case.mode}, not {case.ep}"
    if case.shape.E % case.ep:
        return f"E={case.shape.E} experts do not divide over ep={case.ep} ranks"
    for axis, multiple in MULTIPLES[case.precision].items():
        if widths[axis] % multiple:
            return f"{axis}={widths[axis]} is not a multiple of {multiple}, as dist_moe needs in {case.precision}"
    if case.precision is Precision.NVFP4:
        if case.training:
            return "dist_moe has nvfp4 for inference only"
        for axis, most in NVFP4_MOST.items():
            if widths[axis] > most:
                return f"{axis}={widths[axis]} is more than {most}, the most that dist_moe takes in nvfp4"
    return why_rows_do_not_fit(case)


def check_rows_fit(case: Case, ids_PTK: Sequence[Ids], capacity_rows: int) -> None:
    """Compare the rows of every layer and rank, from the ids themselves, with what the library has planned for.

    One row too many is a trap on the device that strands all other ranks and ends the process, so it is found here,
    on the host, and alike on every rank. Raises RuntimeError.
    """
    for layer, ids in enumerate(ids_PTK):
        rows_E = np.bincount(ids.ravel(), minlength=case.shape.E).astype(np.int64)
        occupied_P = occupied_rows(rows_E, case.ep, case.precision)
        most = max(occupied_P)
        if most > capacity_rows:
            raise RuntimeError(
                f"dist_moe has planned for {capacity_rows} rows at scratch_factor {case.capacity.scratch_factor:g}, "
                f"but rank {occupied_P.index(most)} occupies {most} in layer {layer}; raise scratch_factor"
            )
