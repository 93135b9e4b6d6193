"""A backend of your own: a complete example to copy.

moebench times, checks and reports a kernel that you bring as a class. Nothing is registered and nothing of
moebench is changed; from the folder of your package:

    moebench sweep --matrix conformance --backend mypackage.mymodule:MyBackend    # is it right?
    moebench sweep --backend torch,mok,mypackage.mymodule:MyBackend               # how fast is it?

The first command runs small, odd shapes (an empty rank, one token, 32 experts on 4 ranks, no shared expert, chained
layers) in bf16 and mxfp8, inference and training; it ends with exit status 0 when your backend is right on all that
it supports. A case that it cannot do is `unsupported`, with your reason, and does not fail the sweep.

What you write
- `name`: letters, digits and _; it becomes the first part of your case ids.
- `pipelines`: which pipelines you have in which precision. One is usual, and `Pipeline.EAGER` is its usual name.
- `unsupported(case)`: why you cannot do a case, or None. Called on every rank before anything is allocated.
- `__init__(setup)`: buffers, quantised weights, whatever is outside the timed region. A failure here is recorded,
  and the sweep goes on.
- `layer(l, x_TD, ids_TK, scores_TK)`: layer l. Everything in it is timed: sorting, counting and exchanging included.
  In training it must be differentiable with respect to x_TD, scores_TK and the weights of `setup.weights[l]`: build
  it of torch operations, or write a torch.autograd.Function.

What moebench does: inputs, chaining of layers, `y.backward(g)`, events, memory, comparison with an fp32 reference
before and after timing, on every rank. Collectives go through `setup.exchange`, which counts their bytes by the kind
you name; a kernel that moves data itself reports no bytes there. All ranks must call the same collectives in the same
order. Read `moebench.backends.protocol` for the legend of tensor names and for what else a backend may say.

The example is the plainest correct layer there is: every rank gathers all tokens, computes those of its own experts,
and the partial sums go back to the ranks of the tokens (an all-gather and a reduce-scatter, as a ring would do).
It moves far more bytes than a dispatch, and its time shows it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.backends.protocol import Backend
from moebench.cases.case import Case, Pipeline, Precision
from moebench.rank.exchange import Exchange


class RingMoe(Backend):
    """All-gather of tokens, local experts, reduce-scatter of outputs; bf16 only."""

    name = "ring_moe"
    pipelines = {Precision.BF16: (Pipeline.EAGER,)}  # noqa: RUF012
    shared_schedule = "serial"
    """The shared expert runs after the routed ones, not beside a collective. The report repeats it."""

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        """Any reason will do; this one keeps the gathered rows small."""
        if case.ep * case.shape.T * case.shape.D > 2**28:
            return "every rank holds the tokens of all ranks: more than 2**28 elements are too many"
        return None

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        exchange, weights = self.setup.exchange, self.setup.weights[l]

        # N = P*T tokens of all ranks. Ids have no gradient, so they travel outside autograd.
        ids_NK = exchange.all_gather("metadata", ids_TK).wait().flatten(0, 1)
        x_ND = _AllGather.apply(x_TD, exchange, "dispatch")
        scores_NK = _AllGather.apply(scores_TK, exchange, "dispatch")

        # Sum in FP32: K outputs of a token meet here, those of other ranks in the reduce-scatter.
        y_ND = torch.zeros(x_ND.shape, dtype=torch.float32, device=x_ND.device)
        first = self.setup.rank * self.setup.case.experts_per_rank
        for local, (w13_GD, w2_DF) in enumerate(zip(weights.w13_eGD, weights.w2_eDF, strict=True)):
            token_R, choice_R = torch.nonzero(ids_NK == first + local, as_tuple=True)
            out_RD = _swiglu_mlp(x_ND[token_R], w13_GD, w2_DF)
            y_ND = y_ND.index_add(0, token_R, out_RD * scores_NK[token_R, choice_R].unsqueeze(1))

        y_TD = _ReduceScatter.apply(y_ND, exchange, "combine")
        if self.setup.case.shape.S:  # all shared experts are one MLP; there may be none
            y_TD = y_TD + _swiglu_mlp(x_TD, weights.shared13_GD, weights.shared2_DF)
        return y_TD.to(x_TD.dtype)


def _swiglu_mlp(x_RD: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> Tensor:
    """BF16 weights and rows, FP32 arithmetic; gate is the first half of G, up the last."""
    gate_RF, up_RF = (x_RD.float() @ w13_GD.float().t()).chunk(2, dim=1)
    return (F.silu(gate_RF) * up_RF) @ w2_DF.float().t()


class _AllGather(torch.autograd.Function):
    """[T, ...] of every rank as [N, ...]; the gradient is summed over ranks and scattered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, kind: str) -> Tensor:
        ctx.exchange, ctx.kind, ctx.dtype = exchange, kind, x.dtype
        return exchange.all_gather(kind, x).wait().flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        return _reduce_scatter(gradient[0].float(), ctx.exchange, f"backward {ctx.kind}").to(ctx.dtype), None, None


class _ReduceScatter(torch.autograd.Function):
    """[N, ...] summed over ranks, of which each rank keeps its own [T, ...]; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, kind: str) -> Tensor:
        ctx.exchange, ctx.kind = exchange, kind
        return _reduce_scatter(x, exchange, kind)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.all_gather(f"backward {ctx.kind}", gradient[0]).wait().flatten(0, 1), None, None


def _reduce_scatter(x_N: Tensor, exchange: Exchange, kind: str) -> Tensor:
    """Every rank sends each other rank its T rows, and adds up what it receives."""
    P = exchange.world_size
    T = x_N.shape[0] // P
    parts_N = exchange.all_to_all(kind, x_N, [T] * P, [T] * P).wait()
    return parts_N.view(P, T, *x_N.shape[1:]).sum(0)
