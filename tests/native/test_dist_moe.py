"""The adapter and the planner against the real dist-moe wheel, as far as it goes without Blackwell: `make test-native`.

Elsewhere these tests are skipped: the wheel asks for a newer torch than ours.
"""

import dataclasses
import inspect
import random
import sys
from importlib.metadata import version

import pytest
import torch
import torch.distributed as dist
from tests.backends.dist_moe_library import double as contract
from tests.backends.dist_moe_library.building import KINDS, library_case, prepare
from tests.reduce.build import make_case
from tests.reference import gb300

from moebench.backends.dist_moe import capacity as planner
from moebench.backends.dist_moe.library_config import block_scaled, library_config
from moebench.backends.dist_moe.library_limits import why_library_cannot
from moebench.backends.dist_moe.library_slot import check_slot
from moebench.cases.case import Capacity, Case, Category, Mode, Pipeline, Precision
from moebench.cases.shape import Shape

real = pytest.importorskip("dist_moe")

FUNCTIONS = ("create_context", "plan_memory", "routed_experts", "prepare_block_scaled_weight")
PACKING = [c for c in gb300().values() if c.backend == "dist_moe" and c.category is Category.PACKING]


def test_this_is_the_version_the_adapter_is_written_for():
    assert version("dist-moe") == "0.1.0"


def expected(case: Case) -> dict[str, int]:
    return {
        "total_scratch_capacity_rows": planner.scratch_rows(case),
        "activation_slot_bytes": planner.slot_bytes(case),
        "device_scratch_bytes": planner.scratch_bytes(case),
        "total_device_buffer_bytes": planner.slot_bytes(case) + planner.scratch_bytes(case),
        "host_scratch_bytes": 0,
        "num_activation_slots": 1 if case.training else 0,
    } | ({"saved_input_bytes_per_layer": planner.recomputed_bytes(case.shape)} if case.training else {})


def planned(case: Case) -> dict[str, int]:
    plan = real.plan_memory(library_config(real, case), ep_size=case.ep)
    return {name: getattr(plan, name) for name in expected(case)}


@pytest.mark.parametrize("case", PACKING, ids=lambda case: case.id)
def test_the_real_plan_of_a_published_packing_case_is_ours(case):
    assert planned(case) == expected(case)


def test_there_are_twelve_published_packing_cases():
    assert len(PACKING) == 12


def random_case(dice: random.Random) -> Case:
    mode, precision, pipeline = dice.choice(KINDS)
    multiple = {Precision.BF16: 64, Precision.MXFP8: 128, Precision.NVFP4: 256}[precision]
    ep, local = 2 ** dice.randrange(7), dice.randint(1, 24)
    shape = Shape(
        T=dice.randint(1, 4096),
        D=multiple * dice.randint(1, 30),
        E=ep * local,
        K=dice.randint(1, min(8, ep * local)),
        F=multiple * dice.randint(1, 30),
    )
    return make_case(
        "dist_moe",
        ep,
        mode=mode,
        precision=precision,
        pipeline=pipeline,
        shape=shape,
        layer_imbalances=(1.0,) * dice.randint(1, 12),
        capacity=Capacity(slot_factor=dice.uniform(0, 10), scratch_factor=dice.uniform(0.1, 12)),
    )


def test_the_real_plan_of_500_random_cases_is_ours():
    dice = random.Random(0)
    cases = [random_case(dice) for _ in range(500)]
    assert [planned(case) for case in cases] == [expected(case) for case in cases]


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_config_takes_ours(kind):
    config = library_config(real, library_case(kind, layers=3))
    assert config.num_local_input_tokens == 10
    policy = block_scaled(real, library_case(kind))
    assert config.block_scaled == policy
    assert (policy is None) is (kind[1] is Precision.BF16)


def test_the_real_config_refuses_what_we_say_is_unsupported_in_nvfp4():
    case = make_case(
        "dist_moe",
        1,
        shape=Shape(T=8, D=384, E=4, K=2, F=256),
        precision=Precision.NVFP4,
        pipeline=Pipeline.STAGED,
        mode=Mode.INFERENCE,
    )
    assert "D=384" in why_library_cannot(case)
    with pytest.raises(ValueError, match="NVFP4 requires hidden_dim"):
        library_config(real, case)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_double_has_the_real_signature(name):
    def shape(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    assert shape(getattr(contract.make_double(), name)) == shape(getattr(real, name))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (real.Config, contract.config_class("num_local_input_tokens")),
        (real.BlockScaledConfig, contract.BlockScaledConfig),
    ],
)
def test_the_double_has_the_real_fields_and_defaults(theirs, ours):
    def described(dataclass):
        return [(f.name, getattr(f.default, "name", f.default)) for f in dataclasses.fields(dataclass)]

    assert described(ours) == described(theirs)


def test_the_double_has_the_real_formats():
    assert {f.name for f in contract.BlockScaledFormat} <= {f.name for f in real.BlockScaledFormat}


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_the_adapter_binds_to_the_real_signature(alone, kind, monkeypatch):
    double = contract.make_double()
    monkeypatch.setitem(sys.modules, "dist_moe", double)
    ready = prepare(library_case(kind, layers=2))
    ready.run()
    ready.backend.capacity()
    for name, args, kwargs in double.calls:
        inspect.signature(getattr(real, name)).bind(*args, **kwargs)
    called = {name for name, _, _ in double.calls}
    assert called == set(FUNCTIONS) - ({"prepare_block_scaled_weight"} if kind[1] is Precision.BF16 else set())


def test_what_the_adapter_reads_of_contexts_and_prepared_weights_exists():
    assert {"source", "storage_tensors"} <= set(dir(real.PreparedWeight)) | {
        f.name for f in dataclasses.fields(real.PreparedWeight)
    }
    assert {"close", "reset", "activation_buffer", "memory_plan"} <= set(dir(real.Context)) | set(
        inspect.get_annotations(real.Context)
    )


def test_the_slot_check_reads_the_real_activation_buffer():
    from dist_moe._activation_buffer import ActivationBuffer

    buffer = ActivationBuffer.create(
        total_size_in_bytes=2**16,
        ep_size=4,
        device=torch.device("cpu"),
        scratch_mem_size_in_bytes=2**15,
        num_activation_slots=1,
        num_moe_layers=2,
        inference_mode=False,
    )
    context = type("Context", (), {"activation_buffer": buffer})()
    assert buffer.saved_activation_bytes_per_rank.shape == (4,)
    check_slot(context)
    buffer.buffer_offsets[0] += 128
    with pytest.raises(RuntimeError, match="a forward had no backward"):
        check_slot(context)
    buffer.peak_min_free_space[0] = -128
    with pytest.raises(Exception, match="corrupted"):
        check_slot(context)
