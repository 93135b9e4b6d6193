"""One layer over all ranks' tokens in double precision: no ranks, no routing tables, gradients by autograd.

Every expert computes every token; a token takes of each what its scores say, nothing of most. And the fp32 reference's
numbers under the same names.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from moebench.backends.reference import reference_gradients, reference_layer
from moebench.cases.case import Case
from moebench.rank.inputs import Inputs, make_inputs, make_routing

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


def reference(inputs: Inputs, rank: int, world_size: int) -> dict[str, Tensor]:
    """y and the gradients of one layer by the fp32 reference. Collective."""
    arguments = (inputs.ids_TK[0], inputs.scores_TK[0])
    weights, dw13, dw2 = inputs.weights[0], {}, {}

    def see(local: int, dw13_GD: Tensor, dw2_DF: Tensor) -> None:
        dw13[local], dw2[local] = dw13_GD, dw2_DF

    y_TD = reference_layer(inputs.x_TD, *arguments, weights, rank, world_size)
    assert inputs.dy_TD is not None
    g = reference_gradients(inputs.x_TD, *arguments, inputs.dy_TD, weights, rank, world_size, see)
    experts = range(len(weights.w2_eDF))
    return {
        "y": y_TD,
        "dx": g.dx_TD,
        "dscores": g.dscores_TK,
        "dw13": torch.stack([dw13[local] for local in experts]),
        "dw2": torch.stack([dw2[local] for local in experts]),
        "dshared13": g.dshared13_GD,
        "dshared2": g.dshared2_DF,
    }


def _mlp(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    gate, up = (x @ w13.transpose(-1, -2)).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ w2.transpose(-1, -2)
