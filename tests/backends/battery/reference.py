"""The fp32 reference over ranks, against one dense double-precision computation that knows no ranks."""

from tests.backends.battery.world import KINDS, World, within
from tests.backends.dense import dense

from moebench.backends.reference import reference_gradients, reference_layer
from moebench.cases.case import Mode

LIMIT = 1e-5


def reference_is_the_dense_computation(world: World) -> None:
    for imbalance in (0.0, 1.0, 1.7):
        case = world.case(KINDS[0], Mode.TRAINING, (imbalance,))
        inputs = world.prepare(case).inputs
        arguments = (inputs.x_TD, inputs.ids_TK[0], inputs.scores_TK[0])
        y_TD = reference_layer(*arguments, inputs.weights[0], world.rank, world.size)
        g = reference_gradients(*arguments, inputs.dy_TD, inputs.weights[0], world.rank, world.size)
        got = {
            "y": y_TD,
            "dx": g.dx_TD,
            "dscores": g.dscores_TK,
            "dw13": g.dw13_eGD,
            "dw2": g.dw2_eDF,
            "dshared13": g.dshared13_GD,
            "dshared2": g.dshared2_DF,
        }
        within(got, dense(case, world.rank), LIMIT)
