from tests.backends.dense import CPU, dense
from tests.reduce.build import make_case

from moebench.backends.reference import reference_gradients, reference_layer
from moebench.cases.case import Mode
from moebench.cases.shape import Shape
from moebench.rank.inputs import make_inputs, make_routing


def test_in_one_process_the_reference_is_the_dense_double_precision_computation():
    case = make_case("torch", 1, mode=Mode.TRAINING, shape=Shape(T=9, D=32, E=6, K=3, F=16, S=2))
    inputs = make_inputs(case, 0, CPU, make_routing(case))
    routing = (inputs.ids_TK[0], inputs.scores_TK[0])
    y_TD = reference_layer(inputs.x_TD, *routing, inputs.weights[0], 0, 1)
    g = reference_gradients(inputs.x_TD, *routing, inputs.dy_TD, inputs.weights[0], 0, 1)
    names = ("dx", "dscores", "dw13", "dw2", "dshared13", "dshared2")
    gradients = (g.dx_TD, g.dscores_TK, g.dw13_eGD, g.dw2_eDF, g.dshared13_GD, g.dshared2_DF)
    want = dense(case, 0)
    for name, got in {"y": y_TD, **dict(zip(names, gradients, strict=True))}.items():
        assert (got.double() - want[name]).norm() / want[name].norm() < 1e-5, name
