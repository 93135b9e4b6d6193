"""One iteration of a case: layers chained, forward and, in training, backward. Timed loop and checks share it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.backends.protocol import Backend
from moebench.cases.case import Case
from moebench.rank.inputs import Inputs

RMS_EPS = 1e-6


def rms_norm(y_TD: Tensor) -> Tensor:
    """Weightless RMSNorm over D: without it ten chained SwiGLU layers overflow or vanish."""
    return F.rms_norm(y_TD, (y_TD.shape[-1],), eps=RMS_EPS)


def chain(
    layers: int,
    x_TD: Tensor,
    layer: Callable[[int, Tensor], Tensor],
    before_norm: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """y = layer(x) for one layer; y = y + layer(rms_norm(y)) for each of several, each y seen by `before_norm`."""
    if layers == 1:
        return layer(0, x_TD)
    y_TD = x_TD
    for l in range(layers):
        if before_norm is not None:
            before_norm(y_TD)
        y_TD = y_TD + layer(l, rms_norm(y_TD))
    return y_TD


@dataclass(frozen=True)
class Step:
    """The work between the start event and the end event of an iteration."""

    case: Case
    backend: Backend
    inputs: Inputs

    def forward(self, observe: Callable[[int, Tensor, Tensor], None] | None = None) -> Tensor:
        """y_TD; `observe(l, input, output)` sees each layer in untimed runs."""

        def layer(l: int, h_TD: Tensor) -> Tensor:
            y_TD = self.backend.layer(l, h_TD, self.inputs.ids_TK[l], self.inputs.scores_TK[l])
            if observe is not None:
                observe(l, h_TD, y_TD)
            return y_TD

        with torch.set_grad_enabled(self.case.training):
            return chain(self.case.layers, self.inputs.x_TD, layer)

    def backward(self, y_TD: Tensor) -> None:
        if self.case.training:
            y_TD.backward(self.inputs.dy_TD)

    def clear_gradients(self) -> None:
        """Outside the timed region: gradients are made anew in every iteration."""
        if not self.case.training:
            return
        self.inputs.x_TD.grad = None
        for scores_TK in self.inputs.scores_TK:
            scores_TK.grad = None
        for weights in self.inputs.weights:
            for parameter in weights.parameters():
                parameter.grad = None
