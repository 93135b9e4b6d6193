import torch
from tests.reduce.build import make_case

from moebench.cases.case import Mode
from moebench.cases.shape import Shape
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.step import chain, rms_norm

CPU = torch.device("cpu")


def test_one_layer_is_the_layer_alone():
    x_TD = torch.randn(3, 4)
    assert torch.equal(chain(1, x_TD, lambda l, h_TD: 2 * h_TD), 2 * x_TD)


def test_chained_layers_are_added_to_their_normed_inputs():
    x_TD = torch.randn(3, 4)

    def layer(l, h_TD):
        return (l + 2) * h_TD

    y_TD = x_TD + 2 * rms_norm(x_TD)
    assert torch.equal(chain(2, x_TD, layer), y_TD + 3 * rms_norm(y_TD))


def test_norm_has_no_weight_and_unit_mean_square():
    normed_TD = rms_norm(100 * torch.randn(3, 64))
    assert torch.allclose(normed_TD.square().mean(1), torch.ones(3), atol=1e-4)


def inputs_of(rank, ep, **changes):
    shape = Shape(T=4, D=32, E=4, K=2, F=16, S=1)
    case = make_case("torch", ep, mode=Mode.TRAINING, shape=shape, **changes)
    return make_inputs(case, rank, CPU, make_routing(case))


def test_x_scores_and_gradients_differ_by_rank_and_shared_weights_do_not():
    one, other = inputs_of(0, 2), inputs_of(1, 2)
    for name in ("x_TD", "dy_TD"):
        assert not torch.equal(getattr(one, name), getattr(other, name))
    assert not torch.equal(one.scores_TK[0], other.scores_TK[0])
    assert not torch.equal(one.weights[0].w13_eGD, other.weights[0].w13_eGD)
    assert torch.equal(one.weights[0].shared13_GD, other.weights[0].shared13_GD)


def test_an_expert_has_the_same_weights_whatever_rank_it_is_on():
    whole = inputs_of(0, 1).weights[0].w13_eGD
    halves = [inputs_of(rank, 2).weights[0].w13_eGD for rank in (0, 1)]
    assert torch.equal(torch.cat(halves), whole)


def test_layers_have_weights_and_scores_of_their_own():
    inputs = inputs_of(0, 2, layer_imbalances=(1.0, 1.0))
    assert not torch.equal(inputs.weights[0].w2_eDF, inputs.weights[1].w2_eDF)
    assert not torch.equal(inputs.scores_TK[0], inputs.scores_TK[1])


def test_scores_are_positive_and_sum_to_one():
    scores_TK = inputs_of(0, 2).scores_TK[0]
    assert scores_TK.dtype == torch.float32
    assert (scores_TK > 0).all()
    assert torch.allclose(scores_TK.sum(1), torch.ones(4))


def test_another_seed_is_another_input():
    from moebench.cases.case import Measure

    assert not torch.equal(inputs_of(0, 2).x_TD, inputs_of(0, 2, measure=Measure(seed=1)).x_TD)
