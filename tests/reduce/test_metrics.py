import math

import pytest
from tests.reduce.build import make_case, make_packing, make_trace, make_traces, make_window
from tests.reference import gb300, published

from moebench.reduce import metrics


def test_slowest_rank_counts_and_the_difference_to_the_fastest_is_kept():
    case = make_case()
    traces = [make_trace(case, 0, [[10.0, 10.0], [8.0, 8.0]]), make_trace(case, 1, [[11.0, 13.0], [6.0, 6.0]])]
    times = metrics.case_times(traces)
    assert times.window_ms == [12.0, 8.0]
    assert times.floor_ms == [10.0, 6.0]
    assert times.skew_ms == [2.0, 2.0]
    assert times.iteration_ms == 10.0


def test_mean_over_iterations_comes_before_the_maximum_over_ranks():
    case = make_case()
    traces = [make_trace(case, 0, [[1.0, 9.0], [5.0, 5.0]]), make_trace(case, 1, [[9.0, 1.0], [5.0, 5.0]])]
    assert metrics.case_times(traces).iteration_ms == 5.0


def test_forward_and_backward_have_their_own_slowest_rank():
    case = make_packing()
    times = metrics.case_times([make_trace(case, 0, [[4.0, 4.0]] * 2), make_trace(case, 1, [[6.0, 6.0]] * 2)])
    assert (times.forward_ms, times.backward_ms) == (3.0, 3.0)
    assert metrics.case_times(make_traces(make_case())).backward_ms is None


def test_spread_is_range_over_median_and_one_window_has_none():
    assert metrics.window_spread([10.0, 12.0, 11.0]) == pytest.approx(2 / 11)
    assert metrics.window_spread([10.0]) is None


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, 5e-324, 1e308, math.nan, math.inf])
def test_time_that_no_clock_could_measure_is_named(bad: float):
    case = make_case()
    traces = [make_trace(case, 0), make_trace(case, 1, [[2.0, 2.0], [2.0, bad]])]
    found = metrics.first_invalid_time(traces)
    assert found is not None
    assert found.startswith(f"rank 1, window 2, iteration 2: iteration_ms is {bad:g}")


@pytest.mark.parametrize("seconds", [0.0, 4.1e-3, 1e-300, math.nan])
def test_seconds_of_a_window_must_be_those_of_its_iterations(seconds: float):
    case = make_case()
    traces = make_traces(case)
    traces[-1].windows[0] = make_window([2.0, 2.0], seconds=seconds)
    found = metrics.first_invalid_time(traces)
    assert found == f"rank 1, window 1: seconds is {seconds:g}, and its iterations take 0.004 s"


def test_rates_are_the_mean_over_ranks_of_bytes_over_seconds():
    traces = make_traces(make_case())
    traces[1].windows[:] = [make_window([2.0, 2.0], tx_bytes=48_000)] * 2
    assert metrics.mean_gbps(traces, lambda window: window.tx_bytes) == pytest.approx((0.004 + 0.012) / 2)


def test_traffic_is_null_at_ep_1_and_where_nothing_counted():
    assert metrics.mean_gbps(make_traces(make_case(ep=1)), lambda window: window.tx_bytes) is None
    assert metrics.mean_gbps(make_traces(make_case(), traffic_source=None), lambda window: window.tx_bytes) is None


def test_memory_is_the_largest_over_ranks_and_reserved_bytes_belong_to_packing():
    case = make_packing()
    traces = [
        make_trace(case, 0, peak_allocated_bytes=2**30, peak_reserved_bytes=5),
        make_trace(case, 1, peak_allocated_bytes=3 * 2**29, peak_reserved_bytes=7),
    ]
    assert metrics.peak_allocated_gib(traces) == 1.5
    assert metrics.peak_reserved_bytes(case, traces) == 7
    assert metrics.peak_reserved_bytes(make_case(), traces) is None


def test_memory_that_one_rank_was_refused_is_null():
    case = make_case()
    assert metrics.peak_allocated_gib([make_trace(case, 0), make_trace(case, 1, peak_allocated_bytes=None)]) is None


def test_bytes_by_kind_are_means_over_ranks_and_replay_is_counted_apart():
    case = make_case()
    traces = [
        make_trace(case, 0, tx_bytes_by_kind={"dispatch": 100, "replay_dispatch": 30}),
        make_trace(case, 1, tx_bytes_by_kind={"dispatch": 200}),
    ]
    assert metrics.tx_bytes_by_kind(traces) == {"dispatch": 150, "replay_dispatch": 15}
    assert metrics.replay_tx_bytes(traces) == 15


@pytest.mark.parametrize("case_id", published())
def test_published_rates_follow_from_shape_and_time(case_id: str):
    case, row = gb300()[case_id], published()[case_id]
    assert metrics.useful_tf_per_gpu(case, row["iterationMS"]) == pytest.approx(row["usefulTFPerGPU"], rel=1e-12)
    assert metrics.modeled_hbm_gbps(case, row["iterationMS"]) == pytest.approx(row["modeledHBMGBps"], rel=1e-12)


def test_a_rank_that_begins_5_ms_late_is_reported_as_start_skew_and_not_hidden():
    traces = make_traces(make_case(), [[11.0]])
    for rank, begun_ns in enumerate([1_000_000_000, 1_005_000_000]):
        traces[rank].windows[0].begun_ns = begun_ns
    assert metrics.case_times(traces).start_skew_ms == [5.0]


def test_ranks_of_two_hosts_share_no_clock_so_start_skew_is_absent():
    traces = make_traces(make_case(), [[11.0]])
    for rank, trace in enumerate(traces):
        trace.windows[0].begun_ns = 1
        trace.environment["host"] = f"node{rank}"
    assert metrics.case_times(traces).start_skew_ms is None
