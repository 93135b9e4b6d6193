"""Backends that write their own backward: they decide what is kept, recomputed or replayed, and in what order."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moebench.backends.autograd import apply
from moebench.backends.protocol import Backend


@dataclass(frozen=True)
class Gradients:
    dx_TD: Tensor
    dscores_TK: Tensor
    dw13_eGD: Tensor | None
    """None if `deliver_gradients` brings it."""
    dw2_eDF: Tensor
    dshared13_GD: Tensor | None
    dshared2_DF: Tensor | None


class ManualBackend(Backend):
    """`forward` returns y and what `backward` will need besides x and scores, which autograd keeps."""

    @abstractmethod
    def forward(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> tuple[Tensor, Any]: ...

    @abstractmethod
    def backward(self, l: int, context: Any, x_TD: Tensor, scores_TK: Tensor, dy_TD: Tensor) -> Gradients: ...

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.forward(l, x_TD, ids_TK, scores_TK)[0]
        weights = self.setup.weights[l].parameters()
        return apply(_Layer, self, l, ids_TK, x_TD, scores_TK, *weights)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        backend: ManualBackend,
        l: int,
        ids_TK: Tensor,
        x_TD: Tensor,
        scores_TK: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        y_TD, ctx.context = backend.forward(l, x_TD, ids_TK, scores_TK)
        ctx.save_for_backward(x_TD, scores_TK)
        ctx.backend, ctx.l = backend, l
        return y_TD

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, scores_TK = ctx.saved_tensors
        g: Gradients = ctx.backend.backward(ctx.l, ctx.context, x_TD, scores_TK, dy[0].contiguous())
        ctx.context = None
        return None, None, None, g.dx_TD, g.dscores_TK, g.dw13_eGD, g.dw2_eDF, g.dshared13_GD, g.dshared2_DF
