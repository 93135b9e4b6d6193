"""Which GPU a rank takes, and which collectives follow from it."""

import pytest
from tests.reduce.build import MEASURE, SHAPE, make_case, make_traces

from moebench.rank.placement import collectives, gpu_index, most_ranks_on_one_gpu
from moebench.reduce.row import case_row
from moebench.show.marks import legend, marks


def test_ranks_take_their_own_gpu_or_share_them_out():
    assert [gpu_index(rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    assert [gpu_index(rank, 2) for rank in range(4)] == [0, 1, 0, 1]


def test_one_visible_gpu_per_process_is_device_0_on_every_rank():
    assert [gpu_index(rank, 1) for rank in range(8)] == [0] * 8


def test_a_process_without_a_gpu_says_what_to_check():
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES"):
        gpu_index(0, 0)


def test_nccl_needs_a_gpu_for_each_rank_and_hosts_do_not_mix():
    one_each = ["host-a bus 0", "host-a bus 1", "host-b bus 0", "host-b bus 1"]
    assert collectives(most_ranks_on_one_gpu(one_each)) == "nccl"
    assert most_ranks_on_one_gpu([*one_each, "host-b bus 1"]) == 2
    assert collectives(2) == "gloo"


@pytest.mark.parametrize(("shared_by", "mark"), [(1, "P"), (2, "SP")])
def test_a_row_of_ranks_that_shared_a_gpu_says_that_its_times_mean_nothing(shared_by, mark):
    case = make_case()
    row = case_row(case, make_traces(case, environment={"gpu_shared_by": shared_by}), SHAPE, MEASURE)
    assert marks(row) == mark
    assert ("these times mean nothing" in " ".join(legend([row]))) is (shared_by > 1)
