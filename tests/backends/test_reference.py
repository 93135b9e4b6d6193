from tests.backends.dense import CPU, dense, reference
from tests.reduce.build import make_case

from moebench.cases.case import Mode
from moebench.cases.shape import Shape
from moebench.rank.inputs import make_inputs, make_routing


def test_in_one_process_the_reference_is_the_dense_double_precision_computation():
    case = make_case("torch", 1, mode=Mode.TRAINING, shape=Shape(T=9, D=32, E=6, K=3, F=16, S=2))
    got = reference(make_inputs(case, 0, CPU, make_routing(case)), 0, 1)
    for name, want in dense(case, 0).items():
        assert (got[name].double() - want).norm() / want.norm() < 1e-5, name
