"""The double notices a broken adapter: without that, the tests beside this one would prove nothing."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.backends.mok_library.double import generation
from tests.backends.mok_library.double.faults import Misuse, Trap
from tests.backends.mok_library.double.library import install
from tests.backends.mok_library.make import library_case, library_step

from moebench.backends.mok import library
from moebench.backends.mok.library_weights import Prepared
from moebench.cases.case import Mode, Precision
from moebench.rank.check import check, first_failure

pytestmark = pytest.mark.usefixtures("blackwell")


@pytest.fixture
def double(monkeypatch):
    return install(monkeypatch, generation.G2)


def forward_with(monkeypatch, step, **changed):
    """A step whose weights are prepared otherwise."""
    (prepared,) = step.backend._weights
    monkeypatch.setattr(step.backend, "_weights", [dataclasses.replace(prepared, **changed)])
    return step.forward()


def prepared_of(step) -> Prepared:
    return step.backend._weights[0]


def test_int32_ids(double):
    step = library_step(library_case())
    step.inputs.ids_TK[0] = step.inputs.ids_TK[0].int()
    with pytest.raises(TypeError, match=r"top_experts must have dtype torch\.int64"):
        step.forward()


def test_bf16_router_weights(double):
    step = library_step(library_case(mode=Mode.INFERENCE))
    step.inputs.scores_TK[0] = step.inputs.scores_TK[0].bfloat16()
    with pytest.raises(TypeError, match="router_weights"):
        step.forward()


def test_a_context_used_twice(double, monkeypatch):
    monkeypatch.setattr(library.Kept, "take", lambda kept: kept.context)
    step = library_step(library_case())
    y_TD = step.forward()
    gradient_function = y_TD.grad_fn
    context = gradient_function.context
    y_TD.backward(step.inputs.dy_TD, retain_graph=True)
    gradient_function.context = context
    with pytest.raises(Misuse, match="one backward only"):
        y_TD.backward(step.inputs.dy_TD)


def test_the_adapter_itself_refuses_a_second_use():
    kept = library.Kept(schedule=None, context="context")
    assert kept.take() == "context"
    with pytest.raises(RuntimeError, match="one backward only"):
        kept.take()


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1)], ids=["gate and up", "up and down"])
def test_shared_weights_in_another_order(double, monkeypatch, order):
    step = library_step(library_case(mode=Mode.INFERENCE))
    shared = tuple(prepared_of(step).shared[i] for i in order)
    if order == (0, 2, 1):
        with pytest.raises(ValueError, match="shared up must have shape"):
            forward_with(monkeypatch, step, shared=shared)
        return
    forward_with(monkeypatch, step, shared=shared)
    assert "y of layer 0" in (first_failure(check(step, step.backend.setup.exchange, "before")) or "")


def test_weights_with_gate_and_up_still_joined(double, monkeypatch):
    step = library_step(library_case(mode=Mode.INFERENCE))
    gate_eFD, up_eFD = step.inputs.weights[0].w13_eGD.chunk(2, dim=1)
    with pytest.raises(ValueError, match="routed gate must be contiguous"):
        forward_with(monkeypatch, step, forward=(gate_eFD, up_eFD, prepared_of(step).forward[2]))


@pytest.mark.parametrize("pair", [slice(0, 2), slice(0, 4)], ids=["normal layout", "all four"])
def test_mxfp8_backward_with_the_wrong_tensors_of_down(double, monkeypatch, pair):
    step = library_step(library_case(precision=Precision.MXFP8))
    w2_eDF = step.inputs.weights[0].w2_eDF.detach()
    gate, up, _ = prepared_of(step).backward
    down = step.backend._api.quantize(w2_eDF, True, True)[pair]
    y_TD = forward_with(monkeypatch, step, backward=(gate, up, down))
    with pytest.raises(ValueError, match="down"):
        step.backward(y_TD)


def test_mxfp8_forward_with_all_four_tensors(double, monkeypatch):
    step = library_step(library_case(precision=Precision.MXFP8))
    with pytest.raises(ValueError, match="routed gate must be a tuple of 2"):
        forward_with(monkeypatch, step, forward=prepared_of(step).backward)


def test_gradients_taken_in_the_order_of_the_arguments(double, monkeypatch):
    step = library_step(library_case())
    right = step.backend._api.functional.backward

    def shared_first(*arguments):
        dx, dscores, *weights = right(*arguments)
        return dx, dscores, *weights[3:], *weights[:3]

    monkeypatch.setattr(step.backend._api.functional, "backward", shared_first)
    with pytest.raises((RuntimeError, IndexError)):
        step.backward(step.forward())


def test_gradients_of_gate_and_up_swapped(double, monkeypatch):
    step = library_step(library_case())
    right = step.backend._api.functional.backward

    def swapped(*arguments):
        dx, dscores, gate, up, *others = right(*arguments)
        return dx, dscores, up, gate, *others

    monkeypatch.setattr(step.backend._api.functional, "backward", swapped)
    assert "dw13 of layer 0" in (first_failure(check(step, step.backend.setup.exchange, "before")) or "")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"minibatch_size": np.int64(256)}, "minibatch_size"),
        ({"macrobatch_size": 1024 + 128}, "macrobatch_size"),
        ({"fwd_num_comm_sms": 25}, "even"),
        ({"bwd_num_comm_sms": 148}, "compute SM"),
        ({"all_gather_top_experts_chunk_bytes": 3072}, "chunk_bytes must divide"),
        ({"schedule_capacity_multiplier": np.float32(4)}, "schedule_capacity_multiplier"),
    ],
)
def test_settings_that_mok_refuses(double, changed, message):
    step = library_step(library_case())
    step.backend._config = step.backend._api.config(dataclasses.replace(step.backend._plan.settings, **changed))
    with pytest.raises(ValueError, match=message):
        step.forward()


def test_two_schedules_without_a_forward_between_them(double):
    step = library_step(library_case(mode=Mode.INFERENCE))
    step.forward()
    mok, workspace = step.backend._api.functional, step.backend._workspace
    ids_TK = step.inputs.ids_TK[0]
    mok.build_schedule(workspace, step.backend._config, ids_TK, num_local_experts=5)
    with pytest.raises(Misuse, match="race"):
        mok.build_schedule(workspace, step.backend._config, ids_TK.flip(0).contiguous(), num_local_experts=5)


def test_arguments_of_build_schedule_in_the_order_of_the_others(double):
    step = library_step(library_case(mode=Mode.INFERENCE))
    step.forward()
    mok, backend = step.backend._api.functional, step.backend
    with pytest.raises(TypeError, match="workspace must be a MoKWorkspace"):
        mok.build_schedule(backend._config, backend._workspace, step.inputs.ids_TK[0], num_local_experts=5)


def test_the_device_after_a_trap(double):
    double.dead = True
    with pytest.raises(Trap):
        library_step(library_case()).forward()


def test_a_layer_outside_of_autograd(double):
    step = library_step(library_case())
    with pytest.raises(Misuse, match="no autograd formula"), torch.enable_grad():
        step.backend.forward(0, step.inputs.x_TD, step.inputs.ids_TK[0], step.inputs.scores_TK[0])
