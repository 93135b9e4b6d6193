import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.cases.case import Category, Mode, Pipeline, Precision, report_order
from moebench.cases.expand import Flags, select
from moebench.cases.matrix import load_matrix

QUICK = load_matrix("quick")
ALL = select(QUICK).cases


def some(*values):
    return st.lists(st.sampled_from(values), unique=True, max_size=2)


narrowing = st.builds(
    Flags,
    backend=some("torch", "dist_moe", "mok"),
    mode=some(*Mode),
    ep=some(2, 4),
    precision=some(Precision.BF16, Precision.MXFP8),
    pipeline=some(*Pipeline),
    category=some(*Category),
    imbalance=some(1.0, 2.0, 4.0),
    F=some(64, 128, 256),
)


def wanted(case, flags):
    own = {
        "backend": case.backend,
        "mode": case.mode,
        "ep": case.ep,
        "precision": case.precision,
        "pipeline": case.pipeline,
        "category": case.category,
        "F": case.shape.F,
        "imbalance": None if case.category is Category.PACKING else case.imbalance,
    }
    return all(not getattr(flags, axis) or value in getattr(flags, axis) for axis, value in own.items())


@given(narrowing)
@settings(max_examples=40, deadline=None)
def test_flags_keep_exactly_the_cases_with_these_values(flags):
    expected = [case for case in ALL if wanted(case, flags)]
    if expected:
        selection = select(QUICK, flags)
        assert selection.cases == expected
        assert selection.notes == []


@given(
    st.builds(
        Flags,
        backend=some("torch", "mok"),
        ep=some(1, 2, 8, 16),
        imbalance=some(1.0, 1.5, 3.0),
        F=some(32, 128),
        shape=st.fixed_dictionaries({}, optional={"T": st.sampled_from([8, 64]), "E": st.just(32)}),
    )
)
@settings(max_examples=40, deadline=None)
def test_whatever_is_replaced_cases_are_in_report_order_and_unique(flags):
    cases = select(QUICK, flags).cases
    assert cases == sorted(cases, key=report_order)
    assert len({case.id for case in cases}) == len(cases)
    assert {case.ep for case in cases} <= set(flags.ep or [2, 4])
    assert not flags.ep or {case.ep for case in cases} == set(flags.ep)


def test_selecting_a_selection_by_its_own_ids_changes_nothing():
    flags = Flags(ep=[16], precision=[Precision.MXFP8])
    once = select(QUICK, flags).cases
    again = Flags(ep=flags.ep, precision=flags.precision, select=[case.id for case in once])
    assert select(QUICK, again).cases == once


def test_a_value_that_no_case_has_replaces_the_axis_in_every_block_and_duplicates_merge():
    selection = select(QUICK, Flags(ep=[16]))
    assert {case.ep for case in selection.cases} == {16}
    assert {case.category for case in selection.cases} == set(Category)
    assert selection.notes == ["ep replaced by 16 in every block: quick has no such case"]


def test_one_missing_value_replaces_the_axis_by_all_listed_ones():
    assert {case.ep for case in select(QUICK, Flags(ep=[2, 8])).cases} == {2, 8}


def test_a_replaced_width_merges_the_width_block_into_one_case_each():
    cases = select(QUICK, Flags(F=[96], backend=["mok"], category=[Category.WIDTH])).cases
    assert [case.id for case in cases] == [
        "mok-inference-ep2-bf16-native-width-i1-F96",
        "mok-inference-ep2-mxfp8-native-width-i1-F96",
        "mok-training-ep2-bf16-native-width-i1-F96",
        "mok-training-ep2-mxfp8-native-width-i1-F96",
    ]


def test_imbalance_never_selects_or_changes_packing():
    for flags in (Flags(imbalance=[1.0]), Flags(imbalance=[3.0])):
        assert Category.PACKING not in {case.category for case in select(QUICK, flags).cases}


def test_a_replaced_backend_brings_its_own_pipelines():
    gb300 = load_matrix("gb300")
    cases = select(gb300, Flags(backend=["torch"])).cases
    assert {case.pipeline for case in cases} == {Pipeline.EAGER}
    assert len(cases) == 44


def test_shape_flags_append_the_overridden_axes_in_the_order_T_D_E_K():
    flags = Flags(shape={"K": 4, "T": 8, "D": 128}, select=["mok-inference-ep2-bf16-*-single_layer-i1-*"])
    assert [case.id for case in select(QUICK, flags).cases] == [
        "mok-inference-ep2-bf16-native-single_layer-i1-F128-T8-K4"
    ]


def test_what_a_flag_makes_impossible_is_unsupported_with_the_reason():
    reasons = {case.imbalance: case.unsupported for case in select(QUICK, Flags(ep=[2], imbalance=[1.5, 3])).cases}
    assert reasons == {1.5: None, 3: "imbalance 3 is outside 0..2: ep=2 ranks share 2*T*K rows"}
    mxfp8 = select(QUICK, Flags(F=[40], precision=[Precision.MXFP8])).cases
    assert {case.unsupported for case in mxfp8} == {"F=40 is not a multiple of 32, as mxfp8 scale blocks need"}


@pytest.mark.parametrize("pattern", ["*packing*", "mok-*", "*-i4-*"])
def test_patterns_select_by_id(pattern):
    part = pattern.strip("*")
    assert select(QUICK, Flags(select=[pattern])).cases == [case for case in ALL if part in case.id]
