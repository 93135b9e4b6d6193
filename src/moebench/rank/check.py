"""Numerics of a case against the fp32 reference, on every rank, before and after timing."""

import math

import torch
from torch import Tensor

from moebench.backends.reference import reference_gradients, reference_layer
from moebench.cases.limits import CheckKey, limits
from moebench.rank.exchange import Exchange
from moebench.rank.step import Step, chain, rms_norm
from moebench.rank.trace import Check


def relative_l2(got: Tensor, want: Tensor, size: Tensor | None = None) -> float:
    """||got - want|| over ||want||, or over ||size|| where that is larger, in fp32; NaN counts as wrong."""
    got, want = got.float(), want.float()
    whole = want.norm() if size is None else torch.maximum(want.norm(), size.norm())
    return float((got - want).norm() / whole.clamp_min(1e-30))


class PiecewiseL2:
    """`relative_l2` of a stack of tensors seen one at a time, so that nobody holds all of them in fp32.

    A stack that is missing counts as wrong.
    """

    def __init__(self, got: Tensor | None) -> None:
        self._got = got
        self._wrong2 = math.nan if got is None else 0.0
        self._whole2 = 0.0

    def see(self, i: int, want: Tensor) -> None:
        if self._got is not None:
            self._wrong2 += float((self._got[i].float() - want).norm()) ** 2
            self._whole2 += float(want.norm()) ** 2

    def error(self) -> float:
        return math.sqrt(self._wrong2) / max(math.sqrt(self._whole2), 1e-30)


def worst_token(got_TD: Tensor, want_TD: Tensor) -> float:
    """The largest relative L2 of one token."""
    got_TD, want_TD = got_TD.float(), want_TD.float()
    errors_T = (got_TD - want_TD).norm(dim=1) / want_TD.norm(dim=1).clamp_min(1e-30)
    return float(errors_T.max()) if not errors_T.isnan().any() else math.nan


def finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def check(step: Step, exchange: Exchange, when: str) -> list[Check]:
    """One untimed iteration against the reference: each layer's y, and in training all gradients. Collective.

    Raises TypeError for a y of another shape or dtype than x.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    y_TD = step.forward(lambda l, h_TD, y_TD: seen.append((_kept(h_TD, h_TD), _kept(y_TD, h_TD))))
    step.backward(y_TD)
    step.backend.deliver_gradients()
    del y_TD
    errors: dict[CheckKey, float] = {}
    for l, (h_TD, y_TD) in enumerate(seen):
        want_TD = _reference(step, exchange, l, h_TD)
        errors["y", l, "relative_l2"] = relative_l2(y_TD, want_TD)
        errors["y", l, "worst_token"] = worst_token(y_TD, want_TD)
    if step.case.training:
        errors |= _gradient_errors(step, exchange)
    step.clear_gradients()
    return [
        Check(when=when, tensor=key[0], layer=key[1], metric=key[2], error=finite(errors[key]), limit=limit)
        for key, limit in limits(step.case, exchange.rank).items()
    ]


def _kept(y_TD: Tensor, like_TD: Tensor) -> Tensor:
    if y_TD.shape != like_TD.shape or y_TD.dtype != like_TD.dtype:
        raise TypeError(
            f"layer returned {y_TD.dtype} of shape {list(y_TD.shape)}, "
            f"and y must be {like_TD.dtype} of shape {list(like_TD.shape)}"
        )
    return y_TD.detach().clone()


def _reference(step: Step, exchange: Exchange, l: int, h_TD: Tensor) -> Tensor:
    inputs = step.inputs
    return reference_layer(
        h_TD, inputs.ids_TK[l], inputs.scores_TK[l].detach(), inputs.weights[l], exchange.rank, exchange.world_size
    )


def _gradient_errors(step: Step, exchange: Exchange) -> dict[CheckKey, float]:
    """The gradients that the step has left, end to end, against those of the whole chain in fp32.

    Layers follow `chain` in `step`.
    """
    inputs, layers = step.inputs, step.case.layers
    assert inputs.dy_TD is not None
    layer_inputs, chained = _reference_forward(step, exchange)
    errors: dict[CheckKey, float] = {}
    dy_TD = inputs.dy_TD.float()
    for l in reversed(range(layers)):
        errors_of_layer, dx_TD = _layer_gradient_errors(step, exchange, l, layer_inputs[l], dy_TD)
        errors |= errors_of_layer
        dy_TD = dx_TD if layers == 1 else dy_TD + _norm_backward(chained[l], dx_TD)
    dx = inputs.x_TD.grad
    errors["dx", None, "relative_l2"] = _error(dx, dy_TD)
    errors["dx", None, "worst_token"] = math.nan if dx is None else worst_token(dx, dy_TD)
    return errors


def _reference_forward(step: Step, exchange: Exchange) -> tuple[list[Tensor], list[Tensor]]:
    """In fp32: what enters each layer, and of chained layers each y before its norm."""
    layer_inputs: list[Tensor] = []
    chained: list[Tensor] = []

    def layer(l: int, h_TD: Tensor) -> Tensor:
        layer_inputs.append(h_TD)
        if l == step.case.layers - 1:
            return h_TD  # nothing asks for the last layer's output
        return _reference(step, exchange, l, h_TD)

    with torch.no_grad():
        chain(step.case.layers, step.inputs.x_TD.detach().float(), layer, chained.append)
    return layer_inputs, chained


def _layer_gradient_errors(
    step: Step, exchange: Exchange, l: int, h_TD: Tensor, dy_TD: Tensor
) -> tuple[dict[CheckKey, float], Tensor]:
    """Errors of one layer's gradients, and the gradient of its input h in fp32.

    A gradient of scores has T*K elements, each an inner product that may cancel: hence its own size as its measure.
    """
    w, ids_TK, scores_TK = step.inputs.weights[l], step.inputs.ids_TK[l], step.inputs.scores_TK[l]
    dw13, dw2 = PiecewiseL2(w.w13_eGD.grad), PiecewiseL2(w.w2_eDF.grad)

    def see(local: int, dw13_GD: Tensor, dw2_DF: Tensor) -> None:
        dw13.see(local, dw13_GD)
        dw2.see(local, dw2_DF)

    g = reference_gradients(h_TD, ids_TK, scores_TK, dy_TD, w, exchange.rank, exchange.world_size, see)
    errors: dict[CheckKey, float] = {
        ("dscores", l, "relative_l2"): _error(scores_TK.grad, g.dscores_TK, g.dscores_size_TK),
        ("dw13", l, "relative_l2"): dw13.error(),
        ("dw2", l, "relative_l2"): dw2.error(),
        ("dshared13", l, "relative_l2"): _error(w.shared13_GD.grad, g.dshared13_GD),
        ("dshared2", l, "relative_l2"): _error(w.shared2_DF.grad, g.dshared2_DF),
    }
    return errors, g.dx_TD


def _error(got: Tensor | None, want: Tensor, size: Tensor | None = None) -> float:
    return math.nan if got is None else relative_l2(got, want, size)


def _norm_backward(y_TD: Tensor, dh_TD: Tensor) -> Tensor:
    """Gradient of y from the gradient of rms_norm(y)."""
    leaf_TD = y_TD.detach().requires_grad_()
    with torch.enable_grad():
        normed_TD = rms_norm(leaf_TD)
    return torch.autograd.grad(normed_TD, leaf_TD, dh_TD)[0]


def first_failure(checks: list[Check]) -> str | None:
    """The first failed check in words, or None."""
    return next((check.in_words() for check in checks if not check.passed), None)
