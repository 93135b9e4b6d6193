"""mxfp8 against fp32 arithmetic on the same quantised operands, written out token by token.

The limit of 0.12 in the rank's own check has room for a wrong recipe; 0.01 has not.
"""

import torch
import torch.nn.functional as F
from tests.backends.battery.world import CPU, KINDS, World, distance, expect
from torch import Tensor

from moebench.cases.case import Case, Mode, Precision
from moebench.quant.mxfp8 import Recipe, dequantize, quantize, quantize_tiles
from moebench.rank.inputs import make_inputs, make_routing

LIMIT = 0.01
RECIPES = {"torch": Recipe.FLOOR, "dist_moe": Recipe.FLOOR, "mok": Recipe.CEIL}


def mxfp8_forward_is_fp32_arithmetic_on_quantised_operands(world: World) -> None:
    for kind in KINDS:
        if kind[1] is Precision.MXFP8:
            for mode in Mode:
                case = world.case(kind, mode, (1.5,))
                error = distance(world.prepare(case).run()["y"], _expected(case, world.rank))
                expect(error <= LIMIT, f"{kind} {mode}: y is off by {error:.4f}")


def the_other_recipe_would_be_seen(world: World) -> None:
    for kind in KINDS:
        if kind[1] is Precision.MXFP8:
            case = world.case(kind, Mode.INFERENCE, (1.5,))
            other = Recipe.CEIL if RECIPES[case.backend] is Recipe.FLOOR else Recipe.FLOOR
            error = distance(world.prepare(case).run()["y"], _expected(case, world.rank, other))
            expect(error > LIMIT, f"{kind}: {other} is off by {error:.4f} only")


def _expected(case: Case, rank: int, recipe: Recipe | None = None) -> Tensor:
    """y of a rank, with the weights of all ranks, which the seed gives. Hidden rows are BF16 before they are
    quantised, as they are in memory."""
    recipe = recipe or RECIPES[case.backend]
    ids_PTK = make_routing(case)
    every_P = [make_inputs(case, r, CPU, ids_PTK) for r in range(case.ep)]
    mine = every_P[rank]
    w13_EGD = torch.cat([inputs.weights[0].w13_eGD.detach() for inputs in every_P])
    w2_EDF = torch.cat([inputs.weights[0].w2_eDF.detach() for inputs in every_P])
    tiles = case.training and case.backend == "dist_moe"

    def weight(w: Tensor) -> Tensor:
        return dequantize(quantize_tiles(w, recipe) if tiles else quantize(w, recipe)).float()

    def rounded(x: Tensor) -> Tensor:
        return dequantize(quantize(x.bfloat16(), recipe)).float()

    x_TD, scores_TK = mine.x_TD.detach(), mine.scores_TK[0].detach()
    shared = mine.weights[0]
    gate_TF, up_TF = (x_TD.float() @ shared.shared13_GD.detach().float().t()).chunk(2, dim=1)
    y_TD = (F.silu(gate_TF) * up_TF) @ shared.shared2_DF.detach().float().t()
    for t in range(case.shape.T):
        for k in range(case.shape.K):
            expert = int(ids_PTK[0][rank, t, k])
            gate_F, up_F = (weight(w13_EGD[expert]) @ rounded(x_TD[t])).bfloat16().float().chunk(2)
            out_D = weight(w2_EDF[expert]) @ rounded(F.silu(gate_F) * up_F)
            y_TD[t] += scores_TK[t, k] * out_D
    return y_TD
