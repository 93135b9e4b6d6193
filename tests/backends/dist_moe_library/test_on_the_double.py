"""The adapter end to end, against a double that has every rule of the library and computes the right numbers."""

import pytest
import torch
from tests.backends.battery.world import within
from tests.backends.dense import dense
from tests.backends.dist_moe_library.building import KINDS, SHAPE, all_to_expert_0, called, library_case, prepare

from moebench.backends.dist_moe import library
from moebench.backends.dist_moe.capacity import planned_capacity
from moebench.backends.dist_moe.library import DistMoeLibrary
from moebench.cases.case import Mode, Precision
from moebench.rank.execution import Execution
from moebench.rank.progress import Progress
from moebench.status import Status

TRAINING = [kind for kind in KINDS if kind[0] is Mode.TRAINING]


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_and_its_gradients_are_the_dense_computation(double, kind):
    case = library_case(kind)
    found = prepare(case).run()
    assert set(found) == ({"y"} if kind[0] is Mode.INFERENCE else FOUND_IN_TRAINING)
    want = dense(case, 0) if case.training else {"y": dense(training(case), 0)["y"]}
    within({name.removesuffix(" 0"): tensor for name, tensor in found.items()}, want, 0.01)


FOUND_IN_TRAINING = {"y", "dx", "dscores 0", "dw13 0", "dw2 0", "dshared13 0", "dshared2 0"}


def training(case):
    """The same work with the output gradient that the dense computation asks for."""
    return case.model_copy(update={"mode": Mode.TRAINING})


def test_without_shared_experts_y_is_the_routed_part(double):
    case = library_case(shape=SHAPE.model_copy(update={"S": 0}))
    within(prepare(case).run(), {"y": dense(training(case), 0)["y"]}, 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_an_execution_is_accepted_and_says_what_ran(double, kind, monkeypatch, tmp_path):
    monkeypatch.setattr(DistMoeLibrary, "missing", classmethod(lambda cls: None))
    case = library_case(kind, layers=3)
    execution = Execution(case, 1, 0, torch.device("cpu"), Progress(tmp_path / "events.jsonl"), lambda: False)
    execution.run()
    trace = execution.trace
    assert (trace.status, trace.message) == (Status.ACCEPTED, None)
    assert trace.capacity == planned_capacity(case).model_dump(by_alias=True)
    assert trace.fast_math is (case.precision is Precision.MXFP8)
    assert (trace.implementation, trace.emulated, trace.shared_schedule) == ("library", False, "concurrent")
    assert double.contexts[0].closed


@pytest.mark.parametrize("kind", TRAINING)
@pytest.mark.parametrize(("slot_factor", "layers"), [(0.0, 4), (0.5, 2), (1.0, 0)])
def test_capacity_counts_what_the_slot_kept_and_recomputed(double, kind, slot_factor, layers):
    case = library_case(kind, layers=4, slot_factor=slot_factor)
    ready = prepare(case)
    ready.run()
    capacity = ready.backend.capacity()
    assert capacity == planned_capacity(case).model_dump(by_alias=True)
    assert capacity["capacityRecomputeFlags"] == layers
    assert capacity["savedRank0Bytes"] == capacity["maxSavedRankBytes"] > 0


def test_the_capacity_probe_leaves_no_gradient_and_an_empty_slot(double):
    ready = prepare(library_case(KINDS[3], layers=3))
    ready.run()
    ready.backend.capacity()
    assert all(weight.grad is None for weights in ready.inputs.weights for weight in weights.parameters())
    assert double.contexts[0].activation_buffer.levels == []


def test_a_single_layer_has_no_capacity(double):
    ready = prepare(library_case(KINDS[1]))
    ready.run()
    assert ready.backend.capacity() is None


def test_a_forward_without_its_backward_is_found_after_timing(double):
    ready = prepare(library_case(KINDS[1]))
    ready.step.forward()
    with pytest.raises(RuntimeError, match="a forward had no backward"):
        ready.backend.capacity()


def test_an_overflow_that_the_library_kept_silent_is_found_after_timing(double):
    ready = prepare(library_case(KINDS[1], layers=2, slot_factor=0.0))
    for _ in range(2):
        ready.step.forward()
    with pytest.raises(ValueError, match="numerics are corrupted"):
        ready.backend.capacity()


def test_forward_without_gradients_leaves_a_training_slot_alone(double):
    ready = prepare(library_case(KINDS[1]))
    with torch.no_grad():
        ready.backend.layer(0, ready.inputs.x_TD, ready.inputs.ids_TK[0], ready.inputs.scores_TK[0])
    assert ready.backend.capacity() is None


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_quantised_before_the_first_layer_only(double, kind):
    ready = prepare(library_case(kind, layers=2))
    before = called(double, "prepare_block_scaled_weight")
    ready.run()
    ready.run()
    assert called(double, "prepare_block_scaled_weight") == before
    assert len(before) == (0 if kind[1] is Precision.BF16 else 4)
    assert [kwargs for _, kwargs in before] == [{"inference": kind[0] is Mode.INFERENCE}] * len(before)


def test_the_context_is_made_by_the_first_layer_and_only_once(double):
    ready = prepare(library_case(layers=3))
    assert double.contexts == []
    ready.run()
    ready.run()
    assert len(double.contexts) == 1


def test_the_shared_expert_is_begun_before_the_routed_ones_and_joined_after(double):
    ready = prepare(library_case(), recording=True)
    ready.run()
    assert ready.stages.names == ["shared expert", "routed experts", "join"]


def test_too_many_rows_are_refused_before_there_is_a_context(double):
    """16 rows at balance, 48 allowed; every token on the experts of rank 0 makes 64, or 256 after padding."""
    bf16, mxfp8 = (
        library_case(kind, ep=4, shape=SHAPE.model_copy(update={"T": 8}), scratch_factor=3.0)
        for kind in (KINDS[1], KINDS[3])
    )
    with pytest.raises(
        RuntimeError, match="planned for 48 rows at scratch_factor 3, but rank 0 occupies 64 in layer 0"
    ):
        prepare(bf16, ids_PTK=all_to_expert_0(bf16))
    prepare(mxfp8, ids_PTK=all_to_expert_0(mxfp8))
    assert double.contexts == []


def test_a_trap_leaves_the_layer_and_the_context_is_not_closed(double, monkeypatch):
    ready = prepare(library_case(KINDS[1]))
    ready.run()
    double.contexts[0].trapped = True
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        ready.step.forward()

    def dead(device):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(library, "wait_for", dead)
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        ready.backend.close()


def test_closing_twice_or_unopened_is_harmless(double):
    ready = prepare(library_case())
    ready.backend.close()
    ready = prepare(library_case())
    ready.run()
    ready.backend.close()
    ready.backend.close()
    assert [context.closed for context in double.contexts] == [True]


def test_the_note_says_what_was_reserved_and_quantised(double):
    note = prepare(library_case(KINDS[3], layers=2)).backend.note()
    assert note.prepared_weight_bytes == 2 * 2 * 3 * 8 * 128 * 128
    assert (note.scratch_rows, note.num_sms) == (1024, None)
    assert note.buffer_bytes > 0
    assert prepare(library_case(KINDS[1])).backend.note().prepared_weight_bytes == 0
