import pytest
from tests.reference import gb300, published

from moebench.cases.case import Case, Category, Mode, Pipeline, Precision
from moebench.cases.machine import Machine
from moebench.cases.memory import memory_of
from moebench.cases.runnable import needed_bytes_per_rank, why_not_here
from moebench.cases.shape import Shape

GIB = 2**30
FULL = [id for id, row in published().items() if row["category"] == "packing" or row["imbalance"] == 8]


@pytest.mark.parametrize("id", FULL)
def test_where_buffers_fill_the_model_is_near_the_published_peak(id):
    """In the other cases the libraries reserve buffers for more rows than there are, which the model omits."""
    peak_bytes = published()[id]["peakAllocatedGiB"] * GIB
    assert 0.8 < memory_of(gb300()[id]).timed_bytes / peak_bytes < 1.02


def test_weights_and_gradients_of_a_small_case():
    case = small(mode=Mode.TRAINING, precision=Precision.MXFP8)
    memory = memory_of(case)
    assert memory.weights_bytes == 2 * 3 * 64 * 32 * (2 + 1)
    assert memory.gradients_bytes == 4 * 3 * 64 * 32 * (2 + 1)
    assert memory.quantised_weights_bytes == 2 * 3 * 64 * 32 * 2 * 33 // 32


def test_the_reference_counts_all_tokens_twice_one_expert_and_its_rows():
    assert memory_of(small()).reference_bytes == 4 * (2 * 16 * 64 + 3 * 64 * 32 + 4 * (2 * 64 + 3 * 32))


def test_the_larger_of_check_and_timing_counts():
    memory = memory_of(small())
    assert memory.reference_bytes > memory.activations_bytes
    assert memory.total_bytes == memory.weights_bytes + memory.reference_bytes


def test_training_needs_more_than_inference_and_more_layers_more_than_one():
    one = memory_of(small(mode=Mode.TRAINING)).total_bytes
    assert memory_of(small()).total_bytes < one
    assert one < memory_of(small(mode=Mode.TRAINING, layer_imbalances=(1.0, 1.0))).total_bytes


def small(**changed):
    case = {
        "backend": "torch",
        "mode": Mode.INFERENCE,
        "ep": 2,
        "precision": Precision.BF16,
        "pipeline": Pipeline.EAGER,
        "category": Category.SINGLE_LAYER,
        "shape": Shape(T=8, D=64, E=4, K=1, F=32),
        "imbalance": 1.0,
        "layer_imbalances": (1.0,),
    }
    return Case(**case | changed)


ROOMY = Machine(cores=2, available_bytes=10 * GIB)


def test_a_small_case_runs_here():
    assert why_not_here(small(), ROOMY) is None


def test_more_ranks_than_memory_is_a_reason_with_the_figures():
    machine = Machine(cores=2, available_bytes=GIB // 2)
    assert why_not_here(small(), machine) == (
        "2 ranks of 0.4 GiB (modeled) need 0.8 GiB, this machine has 0.5 GiB available"
    )


def test_all_ranks_of_a_host_share_its_memory():
    needed = needed_bytes_per_rank(small(), ROOMY)
    assert why_not_here(small(), Machine(cores=2, available_bytes=2 * needed)) is None
    assert why_not_here(small(), Machine(cores=2, available_bytes=2 * needed - 1)) is not None


def test_a_gpu_has_its_memory_for_itself():
    case = gb300()["mok-inference-ep8-bf16-native-single_layer-i1-F3072"]
    assert why_not_here(case, Machine(cores=2, available_bytes=GIB, gpu_bytes=(80 * GIB,) * 8)) is None
    reason = why_not_here(case, Machine(cores=2, available_bytes=GIB, gpu_bytes=(4 * GIB,) * 8))
    assert reason is not None
    assert "the GPU has 4.0 GiB" in reason


def test_too_few_gpus_are_shared_by_the_ranks():
    case = gb300()["mok-inference-ep8-bf16-native-single_layer-i1-F3072"]
    needed = needed_bytes_per_rank(case, Machine(cores=2, available_bytes=0, gpu_bytes=(GIB,)))
    two = (4 * needed, 4 * needed)
    assert why_not_here(case, Machine(cores=2, available_bytes=0, gpu_bytes=two)) is None
    reason = why_not_here(case, Machine(cores=2, available_bytes=0, gpu_bytes=(4 * needed - 1,) * 2))
    assert reason is not None
    assert "4 ranks share a GPU" in reason


def test_an_impossible_case_and_a_hard_limit_come_before_memory():
    tiny = Machine(cores=1, available_bytes=0)
    impossible = small(unsupported="E=4 experts do not divide over ep=3 ranks", ep=3)
    assert why_not_here(impossible, tiny) == "E=4 experts do not divide over ep=3 ranks"
    assert needed_bytes_per_rank(impossible, tiny) is None
    packed = gb300()["dist_moe-training-ep64-bf16-standard-packing-A-F3072"]
    tight = packed.model_copy(update={"capacity": packed.capacity.model_copy(update={"scratch_factor": 2.0})})
    assert "rank 0 receives 92160 in layer 0" in (why_not_here(tight, tiny) or "")
