"""What the library cannot do on any machine, told without it."""

import pytest
from tests.backends.dist_moe_library.building import KINDS, SHAPE, WIDE, all_to_expert_0, library_case
from tests.reference import gb300

from moebench.backends.dist_moe.library import DistMoeLibrary
from moebench.backends.dist_moe.library_limits import check_rows_fit
from moebench.cases.case import Mode, Pipeline, Precision

INFERENCE, TRAINING, MXFP8, MXFP8_TRAINING = KINDS[0], KINDS[1], KINDS[2], KINDS[3]
NVFP4 = KINDS[6]


def test_every_published_case_is_supported():
    cases = [case for case in gb300().values() if case.backend == "dist_moe"]
    assert (len(cases), {DistMoeLibrary.unsupported(case) for case in cases}) == (66, {None})


@pytest.mark.parametrize("kind", KINDS)
def test_small_cases_are_supported(kind):
    assert DistMoeLibrary.unsupported(library_case(kind)) is None


def shaped(**axes):
    return {"shape": SHAPE.model_copy(update=axes)}


def wide(**axes):
    return {"shape": WIDE.model_copy(update=axes)}


@pytest.mark.parametrize(
    ("kind", "changed", "why"),
    [
        (INFERENCE, {"ep": 12, **shaped(E=24)}, "power of two up to 256 in inference, not 12"),
        (INFERENCE, {"ep": 512, **shaped(E=512)}, "power of two up to 256 in inference, not 512"),
        (TRAINING, {"ep": 1024, **shaped(E=1024)}, "power of two up to 512 in training, not 1024"),
        (INFERENCE, {"ep": 4, **shaped(E=6)}, "E=6 experts do not divide over ep=4"),
        (INFERENCE, shaped(D=96), "D=96 is not a multiple of 64, as dist_moe needs in bf16"),
        (MXFP8, shaped(D=192), "D=192 is not a multiple of 128, as dist_moe needs in mxfp8"),
        (MXFP8_TRAINING, shaped(F=96), "F=96 is not a multiple of 128, as dist_moe needs in mxfp8"),
        (NVFP4, wide(D=384), "D=384 is not a multiple of 256, as dist_moe needs in nvfp4"),
        (NVFP4, wide(F=128), "F=128 is not a multiple of 256, as dist_moe needs in nvfp4"),
        (NVFP4, wide(D=16640), "D=16640 is more than 16384"),
        (NVFP4, wide(F=8448), "F=8448 is more than 8192"),
        ((Mode.TRAINING, Precision.NVFP4, Pipeline.STAGED), {}, "nvfp4 for inference only"),
        (INFERENCE, {"ep": 4, "imbalance": 4.0, "scratch_factor": 2.0}, "rank 0 receives 80 in layer 0"),
    ],
)
def test_what_the_kernels_refuse_is_unsupported_with_the_reason(kind, changed, why):
    assert why in DistMoeLibrary.unsupported(library_case(kind, **changed))


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (TRAINING, {"ep": 512, **shaped(E=512)}),
        (INFERENCE, {"ep": 256, **shaped(E=256)}),
        (INFERENCE, shaped(D=64, F=8)),
        (NVFP4, wide(D=16384, F=8192)),
    ],
)
def test_the_last_size_inside_each_limit_is_supported(kind, changed):
    assert DistMoeLibrary.unsupported(library_case(kind, **changed)) is None


def test_one_row_too_many_is_found_and_none_too_many_is_not():
    """All 40 tokens on experts 0 and 1 of rank 0: 80 rows in bf16, two experts of 128 in mxfp8."""
    for kind, rows in ((TRAINING, 80), (MXFP8, 256)):
        case = library_case(kind, ep=4)
        check_rows_fit(case, all_to_expert_0(case), rows)
        with pytest.raises(RuntimeError, match=f"rank 0 occupies {rows} in layer 0"):
            check_rows_fit(case, all_to_expert_0(case), rows - 1)
