"""One layer over all ranks' tokens in double precision: no ranks, no routing tables, gradients by autograd.

Every expert computes every token; a token takes of each what its scores say, nothing of most.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.cases.case import Case
from moebench.rank.inputs import make_inputs, make_routing

CPU = torch.device("cpu")


def dense(case: Case, rank: int) -> dict[str, Tensor]:
    """y of a rank's tokens, and the gradients that belong to that rank."""
    ids_PTK = make_routing(case)
    every_P = [make_inputs(case, r, CPU, ids_PTK) for r in range(case.ep)]
    T, e, mine = case.shape.T, case.experts_per_rank, every_P[rank]

    def leaf(tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.detach().double() for tensor in tensors]).requires_grad_()

    x_ND = leaf([inputs.x_TD for inputs in every_P])
    scores_NK = leaf([inputs.scores_TK[0] for inputs in every_P])
    w13_EGD = leaf([inputs.weights[0].w13_eGD for inputs in every_P])
    w2_EDF = leaf([inputs.weights[0].w2_eDF for inputs in every_P])
    shared13_GD, shared2_DF = leaf([mine.weights[0].shared13_GD]), leaf([mine.weights[0].shared2_DF])
    ids_NK = torch.cat([inputs.ids_TK[0] for inputs in every_P])

    gates_NE = torch.zeros(len(x_ND), case.shape.E, dtype=torch.double).scatter_add(1, ids_NK, scores_NK)
    out_NED = _mlp(x_ND.unsqueeze(1).unsqueeze(1), w13_EGD, w2_EDF).squeeze(2)
    tokens = slice(rank * T, (rank + 1) * T)
    y_ND = torch.einsum("ned,ne->nd", out_NED, gates_NE)
    shared_TD = _mlp(x_ND[tokens], shared13_GD, shared2_DF)
    y_TD = y_ND[tokens] + shared_TD

    # The routed part of every rank's tokens reaches this rank's experts; the shared part is of its own tokens.
    dy_ND = torch.cat([inputs.dy_TD.double() for inputs in every_P])  # type: ignore[union-attr]
    total = (y_ND * dy_ND).sum() + (shared_TD * dy_ND[tokens]).sum()
    leaves = (x_ND, scores_NK, w13_EGD, w2_EDF, shared13_GD, shared2_DF)
    dx, dscores, dw13, dw2, dshared13, dshared2 = torch.autograd.grad(total, leaves)
    local = slice(rank * e, (rank + 1) * e)
    return {
        "y": y_TD.detach(),
        "dx": dx[tokens],
        "dscores": dscores[tokens],
        "dw13": dw13[local],
        "dw2": dw2[local],
        "dshared13": dshared13,
        "dshared2": dshared2,
    }


def _mlp(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    gate, up = (x @ w13.transpose(-1, -2)).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w2.transpose(-1, -2)
