"""The fp32 reference that every backend is checked against. It shares no permute or all-to-all with any of them.

All ranks gather x, ids and scores; each computes its own experts, one at a time, for all tokens; the results are
summed over ranks. Legend: N = P*T tokens of all ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from moebench.backends.protocol import LayerWeights


def gather(x: Tensor, world_size: int) -> Tensor:
    """x of every rank along the first axis."""
    if world_size == 1:
        return x
    out = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(out, x.contiguous())
    return torch.cat(out)


def _mlp(x_ND: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> Tensor:
    gate_NF, up_NF = (x_ND @ w13_GD.float().t()).chunk(2, dim=-1)
    return (F.silu(gate_NF) * up_NF) @ w2_DF.float().t()


@torch.no_grad()
def reference_layer(
    x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor, weights: LayerWeights, rank: int, world_size: int
) -> Tensor:
    """y_TD of one layer in fp32, from the backend's own bf16 input and bf16 weights. Collective."""
    T = x_TD.shape[0]
    x_ND = gather(x_TD.float(), world_size)
    ids_NK = gather(ids_TK, world_size)
    scores_NK = gather(scores_TK, world_size)
    y_ND = torch.zeros_like(x_ND)
    e = weights.w13_eGD.shape[0]
    for local in range(e):
        token_H, slot_H = torch.nonzero(ids_NK == rank * e + local, as_tuple=True)
        if token_H.numel():
            out_HD = _mlp(x_ND[token_H], weights.w13_eGD[local], weights.w2_eDF[local])
            y_ND.index_add_(0, token_H, out_HD * scores_NK[token_H, slot_H].unsqueeze(1))
    if world_size > 1:
        dist.all_reduce(y_ND)
    y_TD = y_ND[rank * T : (rank + 1) * T]
    if weights.shared13_GD.numel():
        y_TD = y_TD + _mlp(x_TD.float(), weights.shared13_GD, weights.shared2_DF)
    return y_TD
