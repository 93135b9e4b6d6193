"""How far a backend may be from the fp32 reference: the checks of a case on a rank, each with its limit.

Ranks compare against these, and the reducer asks for each of them, so that no trace can bring limits of its own.
"""

import math

from moebench.cases.case import Case, Measure, Precision
from moebench.cases.work import rows_per_rank

Y_LIMITS = {
    Precision.BF16: {"relative_l2": 0.008, "worst_token": 0.02},
    Precision.MXFP8: {"relative_l2": 0.12, "worst_token": 0.20},
    Precision.NVFP4: {"relative_l2": 0.29, "worst_token": 0.48},
}
"""Limits by measurement; that of nvfp4 is the one dist_moe tests its own kernels with, and its worst token is wider
in the same measure as mxfp8's. One wrong row of 2048 moves the relative L2 only to 0.052, hence the worst token."""

GRADIENT_LIMITS = {Precision.BF16: 0.01, Precision.MXFP8: 0.12}
"""Relative L2 of a gradient end to end, times sqrt(layers), and wider where it is a sum over few samples."""

CheckKey = tuple[str, int | None, str]
"""Tensor, layer (None: of the whole chain), metric."""


def sampled(limit: float, samples: int) -> float:
    """A limit of errors that average over many samples, for few: these may by chance err together.

    Measured for weight gradients in mxfp8, D=64, 60 seeds: the largest error is 1.5 limits at 1 row, 1.2 at 2 rows,
    1.0 at 4 and 0.74 at 64.
    """
    return limit * (1 + 1 / math.sqrt(max(1, samples)))


def _asked_for(measure: Measure) -> dict[str, float]:
    asked = {"relative_l2": measure.y_relative_l2, "worst_token": measure.y_worst_token}
    return {metric: limit for metric, limit in asked.items() if limit is not None}


def limits(case: Case, rank: int) -> dict[CheckKey, float]:
    """Every check of a case on a rank, and its limit."""
    of_y = Y_LIMITS[case.precision] | _asked_for(case.measure)
    found: dict[CheckKey, float] = {("y", l, metric): of_y[metric] for l in range(case.layers) for metric in of_y}
    if not case.training:
        return found
    limit = (case.measure.gradient_relative_l2 or GRADIENT_LIMITS[case.precision]) * math.sqrt(case.layers)
    found["dx", None, "relative_l2"] = limit
    if case.layers == 1:
        found["dx", None, "worst_token"] = of_y["worst_token"]
    for l, rows_P in enumerate(rows_per_rank(case)):
        found["dscores", l, "relative_l2"] = sampled(limit, case.shape.T * case.shape.K)
        for weight in ("dw13", "dw2"):
            found[weight, l, "relative_l2"] = sampled(limit, int(rows_P[rank]))
        if case.shape.S:
            for weight in ("dshared13", "dshared2"):
                found[weight, l, "relative_l2"] = limit
    return found
