"""The capacity that the host plans, so that no schedule overflows."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.backends.mok_library.make import CAPACITY, library_case

from moebench.backends.mok.capacity import schedule_rows
from moebench.backends.mok.library_plan import plan, rows_by_expert
from moebench.cases.case import Precision
from moebench.cases.routing import route
from moebench.cases.shape import Shape
from moebench.cases.work import layer_rows


def capacity_in_mok(case, multiplier) -> int:
    return case.shape.T * case.shape.K * max(2, math.ceil(case.ep * multiplier))


def uniform(T, K, E, ep):
    """Rows of a random uniform routing."""
    random = np.random.default_rng(0)
    ids_PTK = random.random((ep, T, E)).argpartition(K, axis=2)[..., :K].astype(np.int32)
    return library_case(ep, shape=Shape(T=T, D=256, E=E, K=K, F=256, S=1)), rows_by_expert(ids_PTK, E)


def test_experts_that_are_mostly_padding_need_six_times_the_routes_at_ep4():
    case, rows_E = uniform(512, 8, 384, 4)
    assert plan(case, [rows_E], 0.5).schedule_capacity == 6 * 512 * 8


def test_the_published_shape_at_ep4_fits_the_default_exactly():
    case, rows_E = uniform(2048, 6, 384, 4)
    made = plan(case, [rows_E], 0.5)
    assert made.most_rows == made.schedule_capacity == 2 * 2048 * 6


def test_without_need_the_default_capacity_is_that_of_users():
    case = library_case(16, shape=Shape(T=2048, D=7168, E=384, K=6, F=3072, S=1))
    made = plan(case, layer_rows(case), 0.5)
    assert made.schedule_capacity == 8 * 2048 * 6
    assert capacity_in_mok(case, made.settings.schedule_capacity_multiplier) == 8 * 2048 * 6


def test_a_rank_that_receives_all_rows_gets_room_for_them():
    shape = Shape(T=512, D=256, E=64, K=4, F=256, S=1)
    case = library_case(8, shape=shape, layer_imbalances=(1.0, 8.0))
    made = plan(case, layer_rows(case), 0.5)
    assert made.most_rows == 8 * 512 * 4
    assert made.schedule_capacity == 8 * 512 * 4


@given(
    st.sampled_from([1, 4, 8, 16, 64]), st.integers(1, 8), st.integers(1, 4), st.data(), st.sampled_from([0.5, 1.5, 3])
)
@settings(max_examples=60, deadline=None)
def test_no_routing_overflows_its_schedule(ep, experts_per_rank, K, data, default):
    K = min(K, ep * experts_per_rank)
    shape = Shape(T=512, D=256, E=ep * experts_per_rank, K=K, F=256, S=1)
    rows_E = np.array(data.draw(st.lists(st.integers(0, 600), min_size=shape.E, max_size=shape.E)))
    case = library_case(ep, shape=shape)
    made = plan(case, [rows_E], default)
    capacity = capacity_in_mok(case, made.settings.schedule_capacity_multiplier)
    assert capacity == made.schedule_capacity >= int(schedule_rows(rows_E, ep, 256).max())


def test_settings_are_python_numbers_and_follow_the_case():
    case = library_case(capacity=CAPACITY.model_copy(update={"retained_factor": 2.5, "minibatch_rows": 512}))
    settings = plan(case, layer_rows(case), 0.5).settings
    assert {type(value) for value in vars(settings).values()} == {int, float}
    assert (settings.minibatch_size, settings.macrobatch_size) == (512, 2560)
    assert (settings.fwd_num_comm_sms, settings.bwd_num_comm_sms) == (24, 28)
    mxfp8 = library_case(precision=Precision.MXFP8)
    settings = plan(mxfp8, layer_rows(mxfp8), 0.5).settings
    assert (settings.fwd_num_comm_sms, settings.bwd_num_comm_sms) == (36, 36)


@pytest.mark.parametrize(("T", "K", "chunk"), [(512, 1, 2048), (768, 1, 1024), (768, 2, 2048), (1280, 3, 1024)])
def test_the_chunk_of_the_gathered_routes_divides_them(T, K, chunk):
    case = library_case(shape=Shape(T=T, D=256, E=4, K=K, F=256, S=1))
    settings = plan(case, layer_rows(case), 0.5).settings
    assert settings.all_gather_top_experts_chunk_bytes == chunk
    assert T * K * 4 % chunk == 0


def test_rows_that_32_bits_do_not_count_are_refused():
    case = library_case(64, shape=Shape(T=2**20, D=256, E=64, K=8, F=256, S=1))
    rows_E = np.zeros(64, dtype=np.int64)
    rows_E[0] = 2**31
    with pytest.raises(ValueError, match="32 bits"):
        plan(case, [rows_E], 0.5)


def test_rows_come_from_the_ids_of_all_ranks():
    ids_PTK = route(512, 2, 8, 4, 2.0, 0, 0)
    case = library_case(4, shape=Shape(T=512, D=256, E=8, K=2, F=256, S=1), layer_imbalances=(2.0,))
    assert rows_by_expert(ids_PTK, 8).tolist() == layer_rows(case)[0].tolist()


@pytest.mark.parametrize("wrong", [-1, 8])
def test_ids_outside_of_the_experts_are_refused(wrong):
    ids_PTK = np.zeros((4, 512, 2), dtype=np.int32)
    ids_PTK[3, 1, 0] = wrong
    with pytest.raises(ValueError, match="expert ids reach from"):
        rows_by_expert(ids_PTK, 8)
