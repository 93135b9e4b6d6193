"""nvfp4 exists for the real dist_moe in inference; everywhere else it is refused with the reason."""

import pytest
from tests.backends.dist_moe_library.building import KINDS, library_case
from tests.reference import gb300

from moebench.backends.dist_moe.capacity import scratch_bytes, scratch_rows
from moebench.backends.dist_moe.portable import DistMoeBackend
from moebench.cases.case import PIPELINES, Case, Implementation, Mode, Pipeline, Precision
from moebench.cases.expand import Flags, select
from moebench.cases.matrix import load_matrix
from moebench.cases.memory import memory_of
from moebench.cases.work import logical_tx_bytes, modeled_hbm_bytes, useful_flops
from moebench.launch.estimate import case_s


def published(pipeline=Pipeline.STAGED):
    """The published workload at ep 16, in nvfp4."""
    case = gb300()[f"dist_moe-inference-ep16-mxfp8-{pipeline}-single_layer-i1-F3072"]
    changed = {"precision": Precision.NVFP4, "implementation": Implementation.LIBRARY}
    return Case.model_validate(case.model_dump() | changed)


def test_work_of_the_published_shape():
    case = published()
    assert case.id == "dist_moe-inference-ep16-nvfp4-staged-single_layer-i1-F3072"
    assert useful_flops(case) == 6 * 7 * 2048 * 7168 * 3072
    # a row: 3584 bytes of elements, 448 of scales and 4 of its own scale are 4036, padded 4048; combined in bf16
    assert logical_tx_bytes(case) == (4048 + 14336) * 2048 * 6 * 15 // 16
    weights, shared = 24 * 3 * 7168 * 3072 * 9 // 16, 3 * 7168 * 3072 * 2
    assert modeled_hbm_bytes(case) == weights + shared + 7 * 2048 * 3072 * 4 + 9 * 2048 * 7168 * 2 + 2048 * 6 * 4


def test_weights_in_nvfp4_take_nine_bits_of_sixteen():
    assert memory_of(published()).quantised_weights_bytes == 24 * 3 * 7168 * 3072 * 9 // 16


@pytest.mark.parametrize(
    ("pipeline", "scratch"), [(Pipeline.STAGED, (101248, 1788849664)), (Pipeline.MEGA, (101248, 2022530048))]
)
def test_scratch_is_that_of_the_library(pipeline, scratch):
    """Figures of `plan_memory` of dist-moe 0.1.0."""
    assert (scratch_rows(published(pipeline)), scratch_bytes(published(pipeline))) == scratch


def test_no_other_backend_has_it():
    assert [name for name, precisions in PIPELINES.items() if Precision.NVFP4 in precisions] == ["dist_moe"]
    assert Precision.NVFP4 not in DistMoeBackend.pipelines
    assert DistMoeBackend.unsupported(library_case(KINDS[6])) == "the portable dist_moe has no nvfp4"


def asked(implementation):
    flags = Flags(precision=[Precision.NVFP4], implementation=implementation)
    return select(load_matrix("gb300"), flags).cases


def test_asked_of_a_matrix_it_makes_dist_moe_cases_of_both_pipelines():
    cases = asked(Implementation.LIBRARY)
    assert {case.backend for case in cases} == {"dist_moe"}
    assert {case.pipeline for case in cases} == {Pipeline.STAGED, Pipeline.MEGA}
    assert {case.unsupported for case in cases if not case.training} == {None}
    assert {case.unsupported for case in cases if case.training} == {"nvfp4 is for inference only"}


def test_without_the_library_it_is_unsupported_and_says_what_to_ask_for():
    inference = [case for case in asked(Implementation.PORTABLE) if case.mode is Mode.INFERENCE]
    assert {case.unsupported for case in inference} == {
        "nvfp4 is computed by the real dist_moe only: --implementation library"
    }


def test_its_time_is_estimated_on_any_machine():
    assert case_s(published(), 2, on_gpu=False) > 0
