"""The adapter against the contract double: the right numbers, by rightful calls only."""

import dataclasses
import json

import pytest
import torch.distributed as dist
from tests.backends.mok_library.double import generation
from tests.backends.mok_library.double.faults import Trap
from tests.backends.mok_library.double.library import install
from tests.backends.mok_library.make import CAPACITY, CPU, MANY_EXPERTS, SHAPE, library_case, library_step

from moebench.backends.mok.capacity import planned_capacity
from moebench.backends.mok.library import MokLibrary
from moebench.cases.case import Implementation, Mode, Precision
from moebench.rank.check import check, first_failure
from moebench.rank.execution import Execution
from moebench.rank.progress import Progress
from moebench.status import Status

in_both_precisions = pytest.mark.parametrize("precision", [Precision.BF16, Precision.MXFP8])
in_both_modes = pytest.mark.parametrize("mode", list(Mode))
pytestmark = pytest.mark.usefixtures("blackwell")


@in_both_precisions
@in_both_modes
def test_one_layer_and_its_gradients_are_those_of_the_reference(monkeypatch, precision, mode):
    install(monkeypatch, generation.G2)
    step = library_step(library_case(precision=precision, mode=mode))
    checks = check(step, step.backend.setup.exchange, "before")
    assert first_failure(checks) is None
    assert len(checks) == {Mode.INFERENCE: 2, Mode.TRAINING: 9}[mode]


@pytest.mark.parametrize("older", [generation.G0, generation.G1, generation.NINE], ids=lambda g: g.name)
def test_other_versions_of_the_interface_are_called_as_they_want(monkeypatch, older):
    install(monkeypatch, generation.on_one_rank(older))
    step = library_step(library_case())
    assert first_failure(check(step, step.backend.setup.exchange, "before")) is None


@in_both_precisions
def test_chained_layers_share_one_workspace_and_later_iterations_make_it_no_more(monkeypatch, precision):
    double = install(monkeypatch, generation.G2)
    step = library_step(library_case(layers=2, precision=precision))
    assert first_failure(check(step, step.backend.setup.exchange, "before")) is None
    step.backward(step.forward())
    iteration = ["build_schedule", "forward", "build_schedule", "forward", "backward", "backward"]
    assert double.calls == ["create workspace", *iteration, *iteration]


def test_inference_is_schedule_and_forward(monkeypatch):
    double = install(monkeypatch, generation.G2)
    library_step(library_case(layers=2, mode=Mode.INFERENCE)).forward()
    assert double.calls == ["create workspace", "build_schedule", "forward", "build_schedule", "forward"]


def test_a_whole_execution_is_accepted_and_its_trace_says_which_library_ran(monkeypatch, tmp_path):
    double = install(monkeypatch, generation.G2)
    case = library_case(layers=2, implementation=Implementation.LIBRARY)
    execution = Execution(case, 1, 0, CPU, Progress(tmp_path / "events.jsonl"), lambda: False)
    execution.run()
    trace = execution.trace
    assert (trace.status, trace.message, trace.implementation) == (Status.ACCEPTED, None, "library")
    assert trace.environment["library"]["library"]["file"] == "/double/mok.py"
    assert trace.capacity["rank0ReplayRows"] == [256, 256]
    assert double.calls[-1] == "clear workspaces"
    type(trace).model_validate_json(trace.model_dump_json())


def test_the_constructor_makes_no_collective_call(monkeypatch):
    double = install(monkeypatch, generation.G2)
    library_step(library_case())
    assert double.calls == []


@in_both_modes
def test_capacity_is_counted_from_the_library_as_planned(monkeypatch, mode):
    install(monkeypatch, generation.G2)
    case = library_case(layers=2, mode=mode, capacity=CAPACITY.model_copy(update={"retained_factor": 0.4}))
    step = library_step(case)
    step.forward()
    counted = step.backend.capacity()
    assert counted["rank0ScheduleRows"] == [1280, 1280]
    assert counted["rank0ReplayRows"] == ([1280 - 512] * 2 if mode is Mode.TRAINING else [0, 0])
    assert counted["sourcePolicyDerived"] is False
    assert {**counted, "sourcePolicyDerived": True} == planned_capacity(case).model_dump(by_alias=True)


def test_a_case_of_one_layer_has_no_capacity(monkeypatch):
    install(monkeypatch, generation.G2)
    step = library_step(library_case())
    step.forward()
    assert step.backend.capacity() is None


def test_closing_meets_all_ranks_and_clears_the_workspace_once(monkeypatch):
    double = install(monkeypatch, generation.G2)
    monkeypatch.setattr(dist, "barrier", lambda: double.calls.append("barrier"))
    step = library_step(library_case(mode=Mode.INFERENCE))
    step.forward()
    step.backend.close()
    step.backend.close()
    assert double.calls[-2:] == ["barrier", "clear workspaces"]
    assert double.calls.count("barrier") == 1


def test_closing_before_the_first_layer_meets_nobody(monkeypatch):
    double = install(monkeypatch, generation.G2)
    library_step(library_case()).backend.close()
    assert double.calls == []


def test_closing_while_a_failure_is_on_its_way_meets_nobody(monkeypatch):
    double = install(monkeypatch, generation.G2)
    step = library_step(library_case(mode=Mode.INFERENCE))
    step.forward()
    before = list(double.calls)

    def fail():
        try:
            raise RuntimeError("CUDA error")
        finally:
            step.backend.close()

    with pytest.raises(RuntimeError, match="CUDA error"):
        fail()
    assert double.calls == before


def test_without_the_host_check_the_schedule_would_trap(monkeypatch):
    install(monkeypatch, generation.G2)
    step = library_step(library_case(shape=MANY_EXPERTS))
    settings = dataclasses.replace(step.backend._plan.settings, schedule_capacity_multiplier=0.5)
    step.backend._config = step.backend._api.config(settings)
    with pytest.raises(RuntimeError, match="its schedule holds 2048 rows, the fullest rank has 2304"):
        step.forward()
    step.backend._plan = dataclasses.replace(step.backend._plan, most_rows=0)
    with pytest.raises(Trap):
        step.forward()


def test_a_workspace_without_multicast_is_refused_before_a_kernel_needs_it(monkeypatch):
    double = install(monkeypatch, generation.G2)
    double.multicast_ptr = 0
    with pytest.raises(RuntimeError, match="ranks 0: all_gather_top_experts_buffer_multicast_ptr is 0"):
        library_step(library_case()).forward()
    assert double.calls == ["create workspace"]


def test_a_build_for_another_architecture_is_told_before_the_first_collective(monkeypatch):
    double = install(monkeypatch, generation.G2)

    def no_image(*_):
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr("mok.ops.mxfp8_quantize", no_image)
    with pytest.raises(RuntimeError, match=r"no kernel image .* MOK_ARCH"):
        library_step(library_case())
    assert double.calls == []


def test_what_was_run_is_noted(monkeypatch):
    install(monkeypatch, generation.NINE)
    note = library_step(library_case(mode=Mode.INFERENCE, shape=MANY_EXPERTS)).backend.note()
    assert (note.library.file, note.library.version, note.library.gradients) == ("/double/mok.py", "0.1.0", 9)
    assert note.library.swiglu_limit
    assert note.library.recompute
    assert note.schedule_capacity == 3 * 1024
    assert note.most_rows == 2304
    assert note.scope == "training forward whose context is dropped: mok has no mode for inference"
    assert note.copied_weight_bytes == 9 * 2 * 512 * 256 * 2
    json.dumps(dataclasses.asdict(note), allow_nan=False)


def test_fewer_gradients_or_fields_of_older_versions_are_noted(monkeypatch):
    older = dataclasses.replace(
        generation.on_one_rank(generation.G0), without_fields=("all_gather_top_experts_chunk_bytes",)
    )
    install(monkeypatch, older)
    step = library_step(library_case(mode=Mode.INFERENCE))
    step.forward()
    features = step.backend.note().library
    assert (features.swiglu_limit, features.recompute, features.gradients) == (False, False, 8)
    assert "all_gather_top_experts_chunk_bytes" not in features.config_fields


def test_the_timed_backward_copies_no_gradient_to_join_gate_and_up(monkeypatch):
    install(monkeypatch, generation.G2)
    step = library_step(library_case())
    step.backward(step.forward())
    (weights,) = step.inputs.weights
    assert weights.w13_eGD.grad is weights.shared13_GD.grad is None
    step.backend.deliver_gradients()
    assert weights.w13_eGD.grad.shape == weights.w13_eGD.shape
    assert weights.shared13_GD.grad.shape == weights.shared13_GD.shape


def test_quantised_weights_for_inference_have_no_transposed_layout(monkeypatch):
    install(monkeypatch, generation.G2)
    (weights,) = library_step(library_case(mode=Mode.INFERENCE, precision=Precision.MXFP8)).backend._weights
    assert weights.backward[0][2:] == (None, None)
    assert weights.copied_bytes == 5 * 3 * 512 * 256 * 33 // 32


def test_the_ids_given_to_the_layer_decide_and_not_those_of_the_set_up(monkeypatch):
    install(monkeypatch, generation.G2)
    step = library_step(library_case(mode=Mode.INFERENCE))
    ids_TK = step.inputs.ids_TK[0]
    ids_TK.copy_((ids_TK + 1) % SHAPE.E)
    assert first_failure(check(step, step.backend.setup.exchange, "before")) is None


def test_the_adapter_is_the_library_implementation():
    assert (MokLibrary.name, MokLibrary.implementation, MokLibrary.emulated) == ("mok", "library", False)
