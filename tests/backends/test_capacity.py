"""Memory plans of dist_moe and mok: the published figures exactly, and what holds for any workload."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import gb300, published

from moebench.backends.dist_moe import capacity as dist_moe
from moebench.backends.mok import capacity as mok
from moebench.cases.capacity import capacity, why_capacity_refuses
from moebench.cases.case import Capacity, Case, Category, Mode, Pipeline, Precision
from moebench.cases.shape import Shape
from moebench.cases.work import layer_rows

PACKING = [id for id, row in published().items() if row["category"] == "packing"]


@pytest.mark.parametrize("id", PACKING)
def test_published_capacity_is_planned_exactly_with_its_keys_in_order(id):
    assert json.dumps(capacity(gb300()[id])) == json.dumps(published()[id]["capacity"])


def test_only_packing_cases_of_dist_moe_and_mok_have_a_capacity():
    assert len(PACKING) == 10
    assert sum(capacity(case) is not None for case in gb300().values()) == 20
    assert {case.category for case in gb300().values() if capacity(case)} == {Category.PACKING}


@pytest.mark.parametrize(
    ("tail", "slot", "scratch", "saved"),
    [
        ("bf16-standard-packing-A", 12142510080, 5838471168, 9318909952),
        ("bf16-standard-packing-B", 12142510080, 5838471168, 9580650496),
        ("mxfp8-staged-packing-A", 11348090880, 5024772096, 8306737152),
        ("mxfp8-staged-packing-B", 11348090880, 5024772096, 8552398848),
        ("mxfp8-mega-packing-A", 11348090880, 5366722560, 8306737152),
        ("mxfp8-mega-packing-B", 11348090880, 5366722560, 8552398848),
    ],
)
def test_dist_moe_at_ep64(tail, slot, scratch, saved):
    planned = capacity(gb300()[f"dist_moe-training-ep64-{tail}-F3072"])
    assert planned == {
        "slotBytes": slot,
        "slotFactor": 2.5,
        "scratchBytes": scratch,
        "scratchFactor": 8.0,
        "hostScratchBytes": 0,
        "slots": 1,
        "savedRank0Bytes": saved,
        "maxSavedRankBytes": saved,
        "capacityRecomputeFlags": 0,
        "inspectedRankLayers": 640,
    }


@pytest.mark.parametrize(
    ("precision", "profile", "layers_by_slot_factor"),
    [
        ("bf16", "A", {0: 10, 0.5: 7, 1.0: 6, 1.5: 3, 1.8: 1, 1.9: 1, 2.0: 0, 2.5: 0}),
        ("bf16", "B", {0: 10, 0.5: 6, 1.0: 5, 1.5: 1, 1.8: 1, 1.9: 1, 2.0: 0, 2.5: 0}),
        ("mxfp8", "A", {0: 10, 0.5: 9, 1.0: 7, 1.5: 3, 1.8: 0, 1.9: 0, 2.0: 0, 2.5: 0}),
        ("mxfp8", "B", {0: 10, 0.5: 8, 1.0: 4, 1.5: 3, 1.8: 1, 1.9: 0, 2.0: 0, 2.5: 0}),
    ],
)
def test_smaller_slots_make_more_layers_recompute_as_in_dist_moe(precision, profile, layers_by_slot_factor):
    pipeline = {"bf16": "standard", "mxfp8": "staged"}[precision]
    case = gb300()[f"dist_moe-training-ep32-{precision}-{pipeline}-packing-{profile}-F3072"]
    counted = {}
    for factor in layers_by_slot_factor:
        smaller = case.capacity.model_copy(update={"slot_factor": factor})
        counted[factor] = sum(dist_moe.retention(case.model_copy(update={"capacity": smaller})).recompute_L)
    assert counted == layers_by_slot_factor


def made(rows=(1.0,), T=64, K=2, E=16, ep=4, D=128, F=128, backend="dist_moe", precision=Precision.BF16, **capacity):
    return Case(
        backend=backend,
        mode=Mode.TRAINING,
        ep=ep,
        precision=precision,
        pipeline=Pipeline.MEGA,
        category=Category.PACKING,
        shape=Shape(T=T, D=D, E=E, K=K, F=F),
        imbalance=1.0,
        profile="A",
        layer_imbalances=tuple(rows),
        capacity=Capacity(**capacity),
    )


def test_scratch_holds_exactly_its_factor_in_bf16():
    assert why_capacity_refuses(made([4.0], scratch_factor=4.0)) is None
    assert why_capacity_refuses(made([4.0], scratch_factor=3.99)) == (
        "dist_moe scratch holds 511 rows at scratch_factor 3.99, but rank 0 receives 512 in layer 0; "
        "raise scratch_factor"
    )


def test_mxfp8_rows_are_compared_after_padding_each_expert_to_128():
    case = made([1.0, 2.0], T=8, E=4, ep=2, precision=Precision.MXFP8, scratch_factor=1.0)
    assert dist_moe.scratch_rows(case) == (16 + 2 * 127) // 128 * 128 == 256
    assert why_capacity_refuses(case) is None
    few, many = np.array([1, 0, 15, 16]), np.array([129, 1, 0, 0])
    assert dist_moe.occupied_rows(few, 2, Precision.MXFP8) == [128, 256]
    assert dist_moe.why_rows_do_not_fit(case, [few]) is None
    assert "rank 0 receives 384 (each expert padded to 128) in layer 0" in (
        dist_moe.why_rows_do_not_fit(case, [many]) or ""
    )


def test_scratch_is_clamped_to_what_distinct_experts_can_send():
    assert dist_moe.scratch_rows(made(ep=4, E=4, K=2, scratch_factor=8.0)) == 64 * 4
    assert dist_moe.scratch_rows(made(ep=4, E=16, K=2, scratch_factor=8.0)) == 64 * 4 * 2


def test_counted_rows_give_the_decisions_of_the_layers_run_so_far():
    case = made([1.9, 0.6, 1.2, 0.8], slot_factor=0.9)
    whole = dist_moe.retention(case).recompute_L
    rows_LE = layer_rows(case)
    assert [dist_moe.retention(case, rows_LE[:n]).recompute_L for n in range(1, 5)] == [whole[:n] for n in range(1, 5)]
    assert whole == (False, False, True, False)


def test_the_worst_rank_decides_for_all():
    assert dist_moe.must_recompute([10, 0], [5, 5], later_input_bytes=4, slot=18)
    assert not dist_moe.must_recompute([10, 0], [5, 5], later_input_bytes=3, slot=18)


layered = st.lists(st.floats(0, 4), min_size=1, max_size=6)


@given(layered, st.sampled_from(Precision), st.floats(0, 3), st.sampled_from([1, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_saved_bytes_stay_within_the_slot_and_count_every_layer(rows, precision, slot_factor, scratch_factor):
    case = made(rows, precision=precision, slot_factor=slot_factor, scratch_factor=scratch_factor)
    kept, slot = dist_moe.retention(case), dist_moe.slot_bytes(case)
    assert max(kept.saved_bytes_P) <= slot
    assert len(kept.recompute_L) == case.layers
    assert min(kept.saved_bytes_P) >= case.layers * dist_moe.recomputed_bytes(case.shape)
    assert slot % 128 == 0
    if all(kept.recompute_L):
        assert set(kept.saved_bytes_P) == {case.layers * 2 * 64 * 128}


@given(layered, st.sampled_from([1, 16, 32, 256]), st.integers(1, 6).map(lambda n: 32 * n))
@settings(max_examples=60, deadline=None)
def test_mok_pads_every_expert_and_replays_all_beyond_the_first_macrobatch(rows, pad_rows, retained):
    case = made(rows, backend="mok", pad_rows=pad_rows, macrobatch_rows=retained)
    planned = mok.planned_capacity(case)
    replayed = 0
    for layer, rows_E in enumerate(layer_rows(case)):
        schedule_P = mok.schedule_rows(rows_E, case.ep, pad_rows)
        real_P = rows_E.reshape(case.ep, -1).sum(axis=1)
        assert (schedule_P >= real_P).all()
        assert (schedule_P <= real_P + (pad_rows - 1) * case.experts_per_rank).all()
        assert (schedule_P % pad_rows == 0).all()
        assert (mok.macrobatches(schedule_P, retained) * retained >= schedule_P).all()
        replayed += int(np.clip(schedule_P - retained, 0, None).sum())
        assert planned.rank0_schedule_rows[layer] == schedule_P[0]
    assert planned.total_replay_rows == replayed


def test_mok_retains_whole_minibatches_or_a_macrobatch():
    assert mok.retained_rows(made(backend="mok", retained_factor=1.6, minibatch_rows=64)) == 256
    assert mok.retained_rows(made(backend="mok", macrobatch_rows=100)) == 100


def test_an_empty_rank_has_no_schedule_rows_and_no_macrobatch():
    schedule_P = mok.schedule_rows(np.array([0, 0, 1, 33]), 2, 32)
    assert schedule_P.tolist() == [0, 96]
    assert mok.macrobatches(schedule_P, 64).tolist() == [0, 2]


def test_inference_keeps_nothing_and_replays_nothing():
    case = made([1.9, 0.6], slot_factor=0.1, retained_factor=0.5, minibatch_rows=1)
    inference = case.model_copy(update={"mode": Mode.INFERENCE})
    planned = dist_moe.planned_capacity(inference)
    assert (planned.slots, planned.slot_bytes, planned.saved_rank0_bytes) == (0, 0, 0)
    assert planned.capacity_recompute_flags == 0
    assert mok.planned_capacity(case).total_replay_rows > 0
    assert mok.planned_capacity(inference).total_replay_rows == 0


def test_the_planners_need_no_torch():
    import subprocess
    import sys

    code = "import sys, moebench.cases.forecast, moebench.cli.plan_table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
