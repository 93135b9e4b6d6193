"""The double itself: every rule of the library that it enforces, broken once."""

import pytest
import torch
import torch.distributed as dist
from tests.backends.dist_moe_library.building import KINDS, SHAPE, library_case, prepare

TRAINING, MXFP8 = KINDS[1], KINDS[2]


def opened(kind=KINDS[0], **changed):
    """A context of the double and arguments that it takes."""
    ready = prepare(library_case(kind, **changed))
    ready.run()
    backend, inputs = ready.backend, ready.inputs
    arguments = [inputs.x_TD, inputs.ids_TK[0], inputs.scores_TK[0], *backend._weights[0], backend._context]
    return backend._dist_moe.routed_experts, arguments


@pytest.mark.parametrize(
    ("argument", "change", "error"),
    [
        (0, lambda x: x.float(), TypeError),
        (0, lambda x: x[:-1], ValueError),
        (0, lambda x: x.t().contiguous().t(), ValueError),
        (1, lambda ids: ids.short(), TypeError),
        (1, lambda ids: ids[:, :1].contiguous(), ValueError),
        (1, lambda ids: ids.fill_(3), AssertionError),
        (1, lambda ids: ids + 8, AssertionError),
        (2, lambda scores: scores.double(), TypeError),
        (2, lambda scores: scores.clone().requires_grad_(), RuntimeError),
        (3, lambda w13: w13.view(8, 2, 128, 128), ValueError),
    ],
)
def test_a_wrong_argument_is_refused(double, argument, change, error):
    routed_experts, arguments = opened()
    arguments[argument] = change(arguments[argument])
    with pytest.raises(error):
        routed_experts(*arguments)


def test_a_closed_context_is_refused(double):
    routed_experts, arguments = opened()
    arguments[-1].close()
    with pytest.raises(RuntimeError, match="closed"):
        routed_experts(*arguments)


def test_one_prepared_weight_of_two_is_refused(double):
    routed_experts, arguments = opened(MXFP8)
    arguments[3] = arguments[3].source
    with pytest.raises(TypeError, match="both"):
        routed_experts(*arguments)


def test_weights_prepared_for_training_are_refused_in_inference(double):
    routed_experts, arguments = opened(MXFP8)
    policy = arguments[-1].config.block_scaled
    arguments[3:5] = [double.prepare_block_scaled_weight(w.source, policy) for w in arguments[3:5]]
    with pytest.raises(ValueError, match="another format or mode"):
        routed_experts(*arguments)


def test_nvfp4_takes_prepared_weights_only(double):
    routed_experts, arguments = opened(KINDS[6])
    arguments[3:5] = [w.source for w in arguments[3:5]]
    with pytest.raises(ValueError, match="requires prepared"):
        routed_experts(*arguments)


def test_mxfp8_widths_fail_at_the_first_layer(double):
    with pytest.raises(NotImplementedError):
        opened(MXFP8, shape=SHAPE.model_copy(update={"F": 96}))


def test_rows_beyond_the_plan_trap(double):
    routed_experts, arguments = opened()
    arguments[-1].memory_plan.total_scratch_capacity_rows = 19
    with pytest.raises(RuntimeError, match="scratch capacity exceeded"):
        routed_experts(*arguments)
    with pytest.raises(AssertionError, match="after a trap"):
        arguments[-1].close()


def test_backward_must_be_in_reverse_order(double):
    routed_experts, arguments = opened(TRAINING, layers=2)
    first, _second = routed_experts(*arguments), routed_experts(*arguments)
    with pytest.raises(RuntimeError, match="reverse order"):
        first.backward(torch.ones_like(first))


def test_reset_empties_a_leaked_slot(double):
    routed_experts, arguments = opened(TRAINING)
    routed_experts(*arguments)
    arguments[-1].reset()
    assert arguments[-1].activation_buffer.levels == []


def test_what_only_factories_make_cannot_be_constructed(double):
    with pytest.raises(TypeError, match="create_context"):
        double.Context()
    with pytest.raises(TypeError):
        double.create_context(dist.group.WORLD, None)
