import math
from typing import Any

import pytest
from tests.reduce.build import SHAPE, make_case, make_checks, make_packing, make_trace, make_traces

from moebench.cases.case import Measure
from moebench.cases.limits import limits
from moebench.rank.trace import Alternation, Check, RankTrace
from moebench.reduce.accept import judge
from moebench.reduce.traces import Delivered
from moebench.status import Reason, Status


def judged(case, traces: list[RankTrace], missing: list[int] | None = None, broken: list[str] | None = None):
    return judge(case, Delivered(traces, missing or [], broken or []))


def rejected(case, traces: list[RankTrace], reason: Reason, *parts: str) -> None:
    outcome = judged(case, traces)
    assert (outcome.status, outcome.reason, outcome.traces) == (Status.REJECTED, reason, [])
    for part in parts:
        assert part in str(outcome.message)


@pytest.mark.parametrize("case", [make_case(), make_case(ep=1), make_packing()], ids=["ep2", "ep1", "packing"])
def test_complete_right_and_steady_execution_is_accepted(case):
    outcome = judged(case, make_traces(case))
    assert outcome.status is Status.ACCEPTED
    assert len(outcome.traces) == case.ep


def test_missing_ranks_are_named():
    case = make_case(ep=4)
    outcome = judged(case, make_traces(case)[:2], missing=[2, 3])
    assert outcome.reason is Reason.INCOMPLETE
    assert outcome.message == "2 of 4 ranks delivered a trace; missing: rank 2, 3"


def test_broken_trace_file_is_named():
    case = make_case()
    outcome = judged(case, make_traces(case)[:1], broken=["traces/x/1/rank-1.json: EOF"])
    assert outcome.reason is Reason.INCOMPLETE
    assert "traces/x/1/rank-1.json: EOF" in str(outcome.message)


def test_missing_windows_and_iterations_are_incomplete():
    case = make_case()
    rejected(case, make_traces(case, [[2.0, 2.0]]), Reason.INCOMPLETE, "rank 0", "1 windows, asked for 2")
    rejected(case, make_traces(case, [[2.0, 2.0], [2.0]]), Reason.INCOMPLETE, "window 2", "1 iterations", "for 2")


def test_training_without_backward_times_is_incomplete():
    case = make_packing()
    traces = make_traces(case)
    traces[1].windows[0].backward_ms = None
    rejected(case, traces, Reason.INCOMPLETE, "rank 1, window 1: backward_ms of 0 iterations, asked for 2")


def test_failed_check_names_tensor_error_and_limit():
    case = make_case()
    traces = [make_trace(case, 0), make_trace(case, 1, checks=make_checks(case, error=0.052))]
    rejected(case, traces, Reason.INCORRECT, "rank 1", "relative_l2 of y of layer 0 is 0.052", "limit 0.008")


def test_error_that_is_not_finite_is_incorrect():
    case = make_case()
    rejected(case, make_traces(case, checks=make_checks(case, error=None)), Reason.INCORRECT, "not finite", "0.008")


@pytest.mark.parametrize(("error", "limit"), [(-1.0, 0.008), (-math.inf, 0.008), (math.nan, 0.008), (1.0, math.inf)])
def test_error_or_limit_that_no_comparison_gives_is_incorrect(error: float, limit: float):
    case = make_case()
    extra = Check(when="after", tensor="y", layer=None, metric="relative_l2", error=error, limit=limit)
    rejected(case, make_traces(case, checks=[*make_checks(case), extra]), Reason.INCORRECT, f"y is {error:g}")


def test_numbers_that_were_never_checked_are_not_called_correct():
    case = make_case()
    rejected(case, make_traces(case, checks=[]), Reason.INCORRECT, "y was not checked before timing")
    before_only = [check for check in make_checks(case) if check.when == "before"]
    rejected(case, make_traces(case, checks=before_only), Reason.INCORRECT, "y was not checked after timing")
    training = make_packing()
    rejected(training, make_traces(training, checks=make_checks(case)), Reason.INCORRECT, "no gradient was checked")


def changed(case, **changes: Any) -> list[RankTrace]:
    traces = make_traces(case)
    traces[1].realised = traces[1].realised.model_copy(update=changes)
    return traces


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"world_size": 1}, ["rank 1: the number of ranks was 1, asked for 2"]),
        ({"routing_sha256": "abc"}, ["rank 1: the routing's SHA-256 was abc, asked for "]),
        ({"imbalance": [1.25]}, ["the imbalance of each layer was [1.25], asked for [1.0]"]),
        ({"rows_received": [15]}, ["the rows received in each layer was [15], asked for [16]"]),
        ({"imbalance": []}, ["was [], asked for [1.0]"]),
    ],
)
def test_realised_workload_must_be_the_requested_one(changes, parts):
    case = make_case()
    rejected(case, changed(case, **changes), Reason.WRONG_WORKLOAD, *parts)


def test_routing_of_another_seed_is_another_workload_on_every_rank():
    case = make_case()
    other = make_case(measure=case.measure.model_copy(update={"seed": 1}))
    realised = [trace.realised for trace in make_traces(other)]
    traces = [make_trace(case, rank, realised=realised[rank]) for rank in range(2)]
    rejected(case, traces, Reason.WRONG_WORKLOAD, "SHA-256")


def test_trace_of_another_shape_or_implementation_is_another_workload():
    case = make_case()
    other = make_case(shape=SHAPE.model_copy(update={"T": 4}))
    rejected(case, make_traces(other), Reason.WRONG_WORKLOAD, "shape", "'T': 4", "'T': 8")
    mixed = [make_trace(case, 0), make_trace(case, 1, implementation="library")]
    rejected(case, mixed, Reason.WRONG_WORKLOAD, "implementation is library on rank 1 and portable on rank 0")
    rejected(case, make_traces(case, realised=None), Reason.WRONG_WORKLOAD, "did not record the workload")


@pytest.mark.parametrize("bad", [0.0, -2.0, math.nan, math.inf])
def test_impossible_time_is_invalid_timing(bad: float):
    case = make_case()
    rejected(
        case, make_traces(case, [[2.0, bad], [2.0, 2.0]]), Reason.INVALID_TIMING, "window 1, iteration 2", f"{bad:g}"
    )


def gated(limit: float | None):
    return make_case(measure=Measure(windows=2, iterations=2, warmups=0, max_window_spread=limit))


def test_spread_over_the_limit_rejects_with_both_figures():
    unsteady = [[2.0, 2.0], [3.0, 3.0]]
    rejected(gated(0.1), make_traces(gated(0.1), unsteady), Reason.SPREAD, "0.4", "limit 0.1", "2, 3 ms")
    assert judged(gated(0.4), make_traces(gated(0.4), unsteady)).status is Status.ACCEPTED
    assert judged(gated(None), make_traces(gated(None), unsteady)).status is Status.ACCEPTED


def test_hardware_slowdown_rejects_and_the_power_cap_does_not():
    case = make_case()
    rejected(
        case,
        make_traces(case, environment={"throttle_reasons": 0x44}),
        Reason.THROTTLED,
        "0x40",
        "none of 0xe8 allowed",
    )
    assert judged(case, make_traces(case, environment={"throttle_reasons": 0x4})).status is Status.ACCEPTED


def test_failure_of_one_rank_is_told_in_its_own_words_and_not_in_its_peers():
    case = make_case()
    ended = {"status": Status.FAILED, "reason": Reason.CRASHED, "phase": "set-up"}
    traces = [
        make_trace(case, 0, **ended, message="rank 1 could not go on in set-up"),
        make_trace(case, 1, **ended, message="ValueError in set-up: no"),
    ]
    outcome = judged(case, traces)
    assert (outcome.status, outcome.reason) == (Status.FAILED, Reason.CRASHED)
    assert outcome.message == "rank 1, set-up: ValueError in set-up: no"


def test_wrong_numbers_that_a_rank_found_itself_name_tensor_error_and_limit():
    case = make_case()
    ended = {"status": Status.REJECTED, "reason": Reason.INCORRECT, "phase": "check"}
    traces = [
        make_trace(case, 0, **ended, message="rank 1 could not go on in check"),
        make_trace(case, 1, **ended, message="wrong", checks=make_checks(case, error=0.5)),
    ]
    rejected(case, traces, Reason.INCORRECT, "rank 1: relative_l2 of y of layer 0 is 0.5, limit 0.008")


def test_backend_that_finds_itself_unsupported_is_unsupported():
    case = make_case()
    traces = make_traces(case, status=Status.UNSUPPORTED, phase="support", message="needs Blackwell")
    assert judged(case, traces).status is Status.UNSUPPORTED


def test_trace_cannot_bring_limits_of_its_own():
    case = make_case()
    generous = [check.model_copy(update={"error": 5.0, "limit": 1e9}) for check in make_checks(case)]
    rejected(case, make_traces(case, checks=generous), Reason.INCORRECT, "with limit 1e+09", "the limit is 0.008")


def test_every_gradient_must_have_been_checked():
    case = make_packing()
    only_dx = [check for check in make_checks(case) if check.tensor in ("y", "dx")]
    rejected(case, make_traces(case, checks=only_dx), Reason.INCORRECT, "dscores of layer 0 was not checked before")


def test_rows_sent_to_other_ranks_must_be_those_of_the_routing():
    case = make_case()
    traces = make_traces(case)
    traces[1].realised.remote_rows_sent = [0]
    rejected(case, traces, Reason.WRONG_WORKLOAD, "rank 1: the rows sent to other ranks in each layer was [0]")


def test_every_limit_can_be_set_by_the_matrix():
    """Looser or tighter than that of the precision; the one that was used is in the trace and in the report."""
    case = make_packing("mok")
    asked = {"y_relative_l2": 0.1, "y_worst_token": 0.3, "gradient_relative_l2": 0.2, "throttle_bits": 0}
    loose = case.model_copy(update={"measure": case.measure.model_copy(update=asked)})
    usual, wide = limits(case, 0), limits(loose, 0)
    assert {wide[key] for key in wide if key[0] == "y"} == {0.1, 0.3}
    assert wide["dx", None, "relative_l2"] == pytest.approx(20 * usual["dx", None, "relative_l2"])
    assert judged(loose, make_traces(loose, environment={"throttle_reasons": 0xFF})).status is Status.ACCEPTED
    assert judged(loose, [make_trace(loose, rank, checks=make_checks(case, rank)) for rank in range(2)]).reason is (
        Reason.INCORRECT
    )


def test_windows_that_alternate_are_held_to_the_spread_of_their_blocks():
    """The second window of a block follows another case than the first one, which may leave another clock behind."""
    measure = Measure(paired=True, windows=4, iterations=1, warmups=0, max_window_spread=0.1)
    case = make_case("mok", measure=measure)
    alternation = Alternation(group="g", blocks=2, together=True)
    good = make_traces(case, [[3.0], [3.4], [3.3], [3.1]], alternation=alternation)
    assert judged(case, good).status is Status.ACCEPTED
    bad = make_traces(case, [[3.0], [3.4], [3.6], [3.6]], alternation=alternation)
    rejected(case, bad, Reason.SPREAD, "spread over blocks is 0.1176, limit 0.1: blocks of 3.2, 3.6 ms")
