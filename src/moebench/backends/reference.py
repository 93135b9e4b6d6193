"""The fp32 reference that every backend is checked against. It shares no permute or all-to-all with any of them.

All ranks gather x, ids and scores; each computes its own experts, one at a time, for all tokens; the results are
summed over ranks. Legend: N = P*T tokens of all ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from moebench.backends.protocol import LayerWeights


def gather(world_size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors [T, *] of every rank, [N, *] each in fp32, by one collective. Integers must be below 2**24."""
    mine = torch.cat([x.detach().float() for x in tensors], dim=1)
    if world_size > 1:
        out = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(out, mine)
        mine = torch.cat(out)
    return tuple(mine.split([x.shape[1] for x in tensors], dim=1))


def _sum_over_ranks(world_size: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Sums of tensors [N, *] over ranks, by one collective."""
    total = torch.cat(tensors, dim=1)
    if world_size > 1:
        dist.all_reduce(total)
    return tuple(total.split([x.shape[1] for x in tensors], dim=1))


def _mlp(x_ND: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> Tensor:
    gate_NF, up_NF = (x_ND @ w13_GD.t()).chunk(2, dim=-1)
    return (F.silu(gate_NF) * up_NF) @ w2_DF.t()


@torch.no_grad()
def reference_layer(
    x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor, weights: LayerWeights, rank: int, world_size: int
) -> Tensor:
    """y_TD of one layer in fp32 from x_TD, scores and bf16 weights. Collective."""
    T = x_TD.shape[0]
    x_ND, ids_NK, scores_NK = gather(world_size, x_TD, ids_TK, scores_TK)
    y_ND = torch.zeros_like(x_ND)
    for local, expert in _local_experts(weights, rank):
        token_H, slot_H = torch.nonzero(ids_NK == expert, as_tuple=True)
        out_HD = _mlp(x_ND[token_H], weights.w13_eGD[local].float(), weights.w2_eDF[local].float())
        y_ND.index_add_(0, token_H, out_HD * scores_NK[token_H, slot_H].unsqueeze(1))
    (y_ND,) = _sum_over_ranks(world_size, y_ND)
    y_TD = y_ND[rank * T : (rank + 1) * T]
    if weights.shared13_GD.numel():
        y_TD = y_TD + _mlp(x_TD.float(), weights.shared13_GD.float(), weights.shared2_DF.float())
    return y_TD


@dataclass(frozen=True)
class ReferenceGradients:
    """Gradients of one layer in fp32, but for those of its experts' weights; the shared expert's are of this rank's
    own tokens."""

    dx_TD: Tensor
    dscores_TK: Tensor
    dscores_size_TK: Tensor
    """The size that an inner product of such vectors has, ||out|| * ||dy|| / sqrt(D), whatever cancels in it."""
    dshared13_GD: Tensor
    dshared2_DF: Tensor


def reference_gradients(
    x_TD: Tensor,
    ids_TK: Tensor,
    scores_TK: Tensor,
    dy_TD: Tensor,
    weights: LayerWeights,
    rank: int,
    world_size: int,
    expert_gradients: Callable[[int, Tensor, Tensor], None],
) -> ReferenceGradients:
    """Gradients of `reference_layer` by autograd through one expert at a time. Collective.

    `expert_gradients(local, dw13_GD, dw2_DF)` sees those of each of this rank's experts: all of them together, in fp32,
    would take twice the memory of the weights.
    """
    T = x_TD.shape[0]
    x_ND, ids_NK, scores_NK, dy_ND = gather(world_size, x_TD, ids_TK, scores_TK, dy_TD)
    dx_ND, dscores_NK = torch.zeros_like(x_ND), torch.zeros_like(scores_NK)
    size_NK = torch.zeros_like(scores_NK)
    for local, expert in _local_experts(weights, rank):
        token_H, slot_H = torch.nonzero(ids_NK == expert, as_tuple=True)
        leaves = _leaves(x_ND[token_H], weights.w13_eGD[local], weights.w2_eDF[local], scores_NK[token_H, slot_H])
        with torch.enable_grad():
            x_HD, w13_GD, w2_DF, scores_H = leaves
            out_HD = _mlp(x_HD, w13_GD, w2_DF)
            y_HD = out_HD * scores_H.unsqueeze(1)
        dx_HD, dw13_GD, dw2_DF, dscores_H = torch.autograd.grad(y_HD, leaves, dy_ND[token_H])
        expert_gradients(local, dw13_GD, dw2_DF)
        dx_ND.index_add_(0, token_H, dx_HD)
        dscores_NK[token_H, slot_H] = dscores_H
        norms_H = out_HD.detach().norm(dim=1) * dy_ND[token_H].norm(dim=1)
        size_NK[token_H, slot_H] = norms_H / x_ND.shape[1] ** 0.5
    dx_ND, dscores_NK, size_NK = _sum_over_ranks(world_size, dx_ND, dscores_NK, size_NK)
    mine = slice(rank * T, (rank + 1) * T)
    leaves = _leaves(x_TD, weights.shared13_GD, weights.shared2_DF)
    with torch.enable_grad():
        y_TD = _mlp(*leaves)
    dshared_TD, dshared13_GD, dshared2_DF = torch.autograd.grad(y_TD, leaves, dy_TD.detach().float())
    return ReferenceGradients(dx_ND[mine] + dshared_TD, dscores_NK[mine], size_NK[mine], dshared13_GD, dshared2_DF)


def _local_experts(weights: LayerWeights, rank: int) -> Iterator[tuple[int, int]]:
    """(local index, global id) of each expert of this rank."""
    e = weights.w13_eGD.shape[0]
    return ((local, rank * e + local) for local in range(e))


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().float().requires_grad_() for tensor in tensors)
