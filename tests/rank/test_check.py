"""The check lets right numbers through, and nothing else."""

import math

import pytest
import torch
from tests.reduce.build import make_case
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moebench.backends.protocol import Setup, Stages
from moebench.backends.torch_ep import TorchBackend
from moebench.cases.case import Mode, Precision
from moebench.cases.shape import Shape
from moebench.rank.check import PiecewiseL2, check, first_failure, relative_l2
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.step import Step

CPU = torch.device("cpu")
PRECISIONS = (Precision.BF16, Precision.MXFP8)
SHAPE = Shape(T=512, D=32, E=4, K=2, F=32, S=1)


class Bent(TorchBackend):
    """Right but for what `bend` does to the result of a layer."""

    name = "bent"

    def __init__(self, setup, bend):
        super().__init__(setup)
        self._bend = bend

    def layer(self, l, x_TD, ids_TK, scores_TK):
        return self._bend(super().layer, l, x_TD, ids_TK, scores_TK)


def checked(bend, mode=Mode.INFERENCE, precision=Precision.BF16, shape=SHAPE, hook=None, **changes):
    """`hook(weights)` may bend gradients of weights."""
    case = make_case("torch", 1, mode=mode, precision=precision, shape=shape, **changes)
    exchange, ids_PTK = Exchange(0, 1), make_routing(case)
    inputs = make_inputs(case, 0, CPU, ids_PTK)
    if hook is not None:
        hook(inputs.weights[0])
    backend = Bent(Setup(case, 0, CPU, exchange, inputs.weights, ids_PTK, Stages()), bend)
    return check(Step(case, backend, inputs), exchange, "before")


def refused(bend, *parts, **arguments):
    message = first_failure(checked(bend, **arguments))
    assert message is not None
    for part in parts:
        assert part in message


def straight(layer, *arguments):
    return layer(*arguments)


def one_wrong_row(layer, *arguments):
    y_TD = layer(*arguments).clone()
    y_TD[17] = y_TD[18].detach()
    return y_TD


def swapped_scores(layer, l, x_TD, ids_TK, scores_TK):
    return layer(l, x_TD, ids_TK, scores_TK.flip(1))


def one_nan(layer, *arguments):
    y_TD = layer(*arguments).clone()
    y_TD[3, 5] = torch.nan
    return y_TD


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def x_gradient_off_by_5_percent(layer, l, x_TD, ids_TK, scores_TK):
    return layer(l, _Scale.apply(x_TD, 1.05), ids_TK, scores_TK)


def score_gradient_off_by_5_percent(layer, l, x_TD, ids_TK, scores_TK):
    return layer(l, x_TD, ids_TK, _Scale.apply(scores_TK, 1.05))


def missing_score_gradient(layer, l, x_TD, ids_TK, scores_TK):
    return layer(l, x_TD, ids_TK, scores_TK.detach())


def infinite_x_gradient(layer, l, x_TD, ids_TK, scores_TK):
    return layer(l, _Scale.apply(x_TD, torch.inf), ids_TK, scores_TK)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", list(Mode))
def test_right_numbers_pass(mode, precision):
    checks = checked(straight, mode, precision)
    assert first_failure(checks) is None
    gradients = {"dx", "dscores", "dw13", "dw2", "dshared13", "dshared2"} if mode is Mode.TRAINING else set()
    assert {c.tensor for c in checks} == {"y"} | gradients
    assert all(c.error > 0 for c in checks)


def test_chained_layers_pass_and_are_checked_each():
    checks = checked(straight, Mode.TRAINING, layer_imbalances=(1.0, 1.0, 1.0))
    assert first_failure(checks) is None
    assert {c.layer for c in checks if c.tensor in ("y", "dw2", "dscores")} == {0, 1, 2}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_wrong_row_of_512_is_refused(precision):
    """In mxfp8 only the worst token shows it: the relative L2 of 512 rows moves to 0.06, limit 0.12."""
    refused(one_wrong_row, "worst_token of y of layer 0" if precision is Precision.MXFP8 else "y", precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_swapped_scores_are_refused(precision):
    refused(swapped_scores, "y of layer 0", precision=precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_nan_is_refused(precision):
    refused(one_nan, "of y of layer 0 is not finite, limit", "(before timing)", precision=precision)


@pytest.mark.parametrize(
    ("bend", "tensor"), [(x_gradient_off_by_5_percent, "dx"), (score_gradient_off_by_5_percent, "dscores")]
)
def test_gradient_off_by_5_percent_is_refused_in_bf16(bend, tensor):
    refused(bend, f"relative_l2 of {tensor}", "limit 0.01", mode=Mode.TRAINING)


@pytest.mark.parametrize(("bend", "tensor"), [(missing_score_gradient, "dscores"), (infinite_x_gradient, "dx")])
def test_missing_and_infinite_gradients_are_refused(bend, tensor):
    refused(bend, f"relative_l2 of {tensor}", "is not finite", mode=Mode.TRAINING)


def one_expert_off_by_5_percent(gradient_eXX):
    bent_eXX = gradient_eXX.clone()
    bent_eXX[3] *= 1.05
    return bent_eXX


def one_nan_of_one_expert(gradient_eXX):
    bent_eXX = gradient_eXX.clone()
    bent_eXX[3, 5, 7] = torch.nan
    return bent_eXX


@pytest.mark.parametrize("weights", ["w13_eGD", "w2_eDF"])
@pytest.mark.parametrize(
    ("bend", "found"), [(one_expert_off_by_5_percent, "is 0.02"), (one_nan_of_one_expert, "is not finite")]
)
def test_wrong_weight_gradients_of_one_expert_of_4_are_refused(weights, bend, found):
    tensor = "d" + weights.split("_")[0]
    refused(
        straight,
        f"relative_l2 of {tensor} of layer 0 {found}",
        mode=Mode.TRAINING,
        hook=lambda w: getattr(w, weights).register_hook(bend),
    )


def test_relative_l2_in_pieces_is_that_of_the_stack():
    generator = torch.Generator().manual_seed(1)
    want = torch.randn(4, 30, 20, generator=generator) * torch.tensor([1.0, 0.0, 10.0, 1e3]).view(4, 1, 1)
    got = (want + 0.01 * torch.randn(want.shape, generator=generator)).bfloat16()
    pieces, missing = PiecewiseL2(got), PiecewiseL2(None)
    for i in range(4):
        pieces.see(i, want[i])
        missing.see(i, want[i])
    assert pieces.error() == pytest.approx(relative_l2(got, want), rel=1e-5)
    assert math.isnan(missing.error())


class LargestFp32(TorchDispatchMode):
    """Elements of the largest fp32 tensor that anything made."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        fp32 = [t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.dtype == torch.float32]
        self.elements = max([self.elements, *fp32])
        return out


def test_no_more_than_one_expert_is_ever_held_in_fp32():
    """All of them would take twice what their weights and gradients take, and large cases would end in the check."""
    shape = Shape(T=8, D=32, E=16, K=2, F=32, S=1)
    with LargestFp32() as largest:
        checked(straight, Mode.TRAINING, shape=shape)
    assert largest.elements == 2 * shape.F * shape.D


def test_check_leaves_no_gradient_behind():
    case = make_case("torch", 1, mode=Mode.TRAINING)
    exchange, ids_PTK = Exchange(0, 1), make_routing(case)
    inputs = make_inputs(case, 0, CPU, ids_PTK)
    backend = TorchBackend(Setup(case, 0, CPU, exchange, inputs.weights, ids_PTK, Stages()))
    check(Step(case, backend, inputs), exchange, "after")
    leaves = [inputs.x_TD, *inputs.scores_TK, *(p for w in inputs.weights for p in w.parameters())]
    assert all(leaf.grad is None for leaf in leaves)
