"""Numerics of a case against the fp32 reference, on every rank, before and after timing."""

import math

from torch import Tensor

from moebench.backends.reference import reference_layer
from moebench.cases.case import Precision
from moebench.rank.exchange import Exchange
from moebench.rank.step import Step
from moebench.rank.trace import Check

Y_LIMITS = {
    Precision.BF16: {"relative_l2": 0.008, "worst_token": 0.02},
    Precision.MXFP8: {"relative_l2": 0.12, "worst_token": 0.20},
}
"""Limits by measurement. One wrong row of 2048 moves the relative L2 only to 0.052, hence the worst token."""


def relative_l2(got: Tensor, want: Tensor) -> float:
    """||got - want|| / ||want||, in fp32; NaN counts as wrong."""
    got, want = got.float(), want.float()
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def worst_token(got_TD: Tensor, want_TD: Tensor) -> float:
    """The largest relative L2 of one token."""
    got_TD, want_TD = got_TD.float(), want_TD.float()
    errors_T = (got_TD - want_TD).norm(dim=1) / want_TD.norm(dim=1).clamp_min(1e-30)
    return float(errors_T.max()) if not errors_T.isnan().any() else math.nan


def finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def check_forward(step: Step, exchange: Exchange, when: str) -> list[Check]:
    """Each layer's y against the reference on the backend's own input of that layer. Collective."""
    seen: list[tuple[Tensor, Tensor]] = []
    step.forward(lambda l, h_TD, y_TD: seen.append((h_TD.detach().clone(), y_TD.detach().clone())))
    limits = Y_LIMITS[step.case.precision]
    checks = []
    for l, (h_TD, y_TD) in enumerate(seen):
        want_TD = reference_layer(
            h_TD,
            step.inputs.ids_TK[l],
            step.inputs.scores_TK[l].detach(),
            step.inputs.weights[l],
            exchange.rank,
            exchange.world_size,
        )
        errors = {"relative_l2": relative_l2(y_TD, want_TD), "worst_token": worst_token(y_TD, want_TD)}
        checks += [
            Check(when=when, tensor="y", layer=l, metric=metric, error=finite(error), limit=limits[metric])
            for metric, error in errors.items()
        ]
    return checks


def first_failure(checks: list[Check]) -> str | None:
    """The first failed check in words, or None."""
    for check in checks:
        if not check.passed:
            layer = "" if check.layer is None else f" of layer {check.layer}"
            error = "not finite" if check.error is None else f"{check.error:.4g}"
            return f"{check.metric} of {check.tensor}{layer} is {error}, limit {check.limit:g} ({check.when} timing)"
    return None
