"""The shared experts of a layer: one BF16 SwiGLU MLP of width S*F, forward and backward. G = 2*S*F here."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moebench.backends import gemm
from moebench.backends.autograd import apply
from moebench.backends.swiglu import swiglu, swiglu_backward


@dataclass(frozen=True)
class SharedForward:
    y_TD: Tensor
    h13_TG: Tensor


@dataclass(frozen=True)
class SharedBackward:
    dx_TD: Tensor
    dw13_GD: Tensor
    dw2_DF: Tensor


def shared_forward(x_TD: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> SharedForward:
    h13_TG = gemm.linear(x_TD, w13_GD)
    return SharedForward(gemm.linear(swiglu(h13_TG), w2_DF), h13_TG)


def shared_backward(dy_TD: Tensor, x_TD: Tensor, h13_TG: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> SharedBackward:
    dh13_TG, h_TF = swiglu_backward(gemm.matmul(dy_TD, w2_DF), h13_TG)
    return SharedBackward(gemm.matmul(dh13_TG, w13_GD), gemm.outer(dh13_TG, x_TD), gemm.outer(dy_TD, h_TF))


def shared_expert(x_TD: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> Tensor:
    """y_TD, differentiable by autograd."""
    return apply(_Shared, x_TD, w13_GD, w2_DF)


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> Tensor:
        shared = shared_forward(x_TD, w13_GD, w2_DF)
        ctx.save_for_backward(x_TD, shared.h13_TG, w13_GD, w2_DF)
        return shared.y_TD

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        g = shared_backward(dy[0].contiguous(), *ctx.saved_tensors)
        return g.dx_TD, g.dw13_GD, g.dw2_DF
