"""What is said of a new report against an old one. Windows are literal; ratios and p-values were worked by hand."""

from statistics import fmean
from typing import Any

import numpy as np
import pytest
from tests.show.build import report, row

from moebench.errors import UsageError
from moebench.reduce.compare import ReportComparison, compare_reports
from moebench.reduce.regression import CaseComparison, Finding, decide, hochberg
from moebench.reduce.schema import CaseRow, Report

OLD = [102.0, 100.0, 104.0, 101.0, 103.0]
SLOW = [112.0, 110.0, 114.0, 111.0, 113.0]


def case(windows: list[float] | None, **keys: Any) -> dict[str, Any]:
    """A row whose time is the mean of its windows."""
    return row("torch", fmean(windows) if windows else 100.0, windowMS=windows, **keys)


def compared(old: dict[str, Any], new: dict[str, Any], max_regression: float = 0.03, **keys: Any) -> CaseComparison:
    (one,) = compare_reports(report(old), report(new), max_regression, **keys).compared
    return one


def why_not(old: dict[str, Any], new: dict[str, Any]) -> str:
    found = compare_reports(report(old), report(new), 0.03)
    assert found.compared == []
    (one,) = found.not_compared
    assert one.finding is Finding.UNDECIDED
    return one.why


@pytest.mark.parametrize(
    ("new", "finding", "p_value"),
    [
        (SLOW, Finding.REGRESSION, 2 / 252),
        ([ms * 1.05 for ms in OLD], Finding.UNDECIDED, pytest.approx(2 * 28 / 252)),  # 6 of 25 pairs contradict
        (OLD, Finding.FINE, None),
        ([90.0, 91.0, 92.0, 93.0, 94.0], Finding.FINE, None),
        ([90.0, 95.0, 100.0, 110.0, 120.0], Finding.UNDECIDED, None),
    ],
    ids=["slow", "slow by chance?", "same", "fast", "noisy"],
)
def test_a_case_is_judged_by_its_whole_interval(new: list[float], finding: Finding, p_value: float | None):
    one = compared(case(OLD), case(new))
    assert (one.finding, one.p_value) == (finding, p_value)
    assert one.why == ("the limit lies inside the interval" if finding is Finding.UNDECIDED else "")


def test_ratio_and_interval_are_those_of_all_pairs_of_windows():
    one = compared(case(OLD), case(SLOW))
    assert one.interval is not None
    # the middle, the third smallest and the third largest of 25 ratios
    assert (one.ratio, one.interval.low, one.interval.high) == pytest.approx((112 / 102, 110 / 103, 114 / 101))
    assert one.interval.level == pytest.approx(1 - 8 / 252)


@pytest.mark.parametrize(
    ("new_ms", "max_regression", "finding"),
    [(52.5, 0.05, Finding.FINE), (50.0, 0.0, Finding.FINE), (52.5, 0.049, Finding.REGRESSION)],
)
def test_times_without_noise_that_are_at_the_limit_are_within_it(new_ms, max_regression, finding):
    assert compared(case([50.0] * 5), case([new_ms] * 5), max_regression).finding is finding


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (case(None), case(SLOW), "A has no samples (windowMS)"),
        (case(OLD), case(None), "B has no samples (windowMS)"),
        (case(OLD), case(SLOW[:3]), "B has samples of 3 windows, and 4 are needed"),
        (case([]), case(SLOW), "A has no samples (windowMS)"),
        (case(OLD), case(SLOW) | {"iterationMS": 100.0}, "B has windows whose mean is not its iterationMS"),
    ],
)
def test_without_samples_nothing_is_said_unless_the_ratio_of_means_may_decide(old, new, why):
    one = compared(old, new)
    assert (one.finding, one.why, one.interval) == (Finding.UNDECIDED, why, None)
    slower = new["iterationMS"] > 1.03 * old["iterationMS"]
    by_ratio = compared(old, new, by_ratio=True)
    assert by_ratio.finding is (Finding.REGRESSION if slower else Finding.FINE)
    assert by_ratio.why == f"by the ratio of means alone, since {why}"


def test_hochberg_multiplies_the_largest_by_1_and_the_smallest_by_all():
    assert hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.04, 0.04, 0.02])
    assert hochberg([0.7, 0.6]) == pytest.approx([0.7, 0.7])
    assert hochberg([0.04, 0.04]) == pytest.approx([0.04, 0.04])
    assert hochberg([]) == []


def table(*ratios: float, windows: list[float] = OLD) -> tuple[Report, Report]:
    """Cases of as many widths; the new windows are the old ones times a ratio."""
    return (
        report(*(case(windows, F=8 * i) for i in range(1, len(ratios) + 1))),
        report(*(case([ms * ratio for ms in windows], F=8 * i) for i, ratio in enumerate(ratios, 1))),
    )


@pytest.mark.parametrize(
    ("ratios", "regressions"),
    [([1.2, *[1.0] * 29], 1), ([1.2] * 36, 36)],
    ids=["one of 30", "all of 36"],
)
def test_five_windows_suffice_for_one_regression_and_for_many_at_once(ratios, regressions):
    found = compare_reports(*table(*ratios), 0.03)
    assert len(found.having(Finding.REGRESSION)) == regressions
    assert found.claims == sum(ratio > 1.03 for ratio in ratios)


def test_a_claim_that_does_not_survive_the_others_says_so():
    one, *_ = compare_reports(*table(1.2, 1.04, 1.04, 1.04, 1.04, 1.04, 1.04), 0.03).compared
    assert one.interval is not None
    assert one.interval.low > 1.03
    assert (one.finding, one.p_value) == (Finding.UNDECIDED, pytest.approx(7 * 2 / 252))
    assert one.why == "the interval lies above the limit, which can be chance among 7 claims"


def test_tables_in_which_every_case_is_exactly_at_the_limit_rarely_have_a_regression():
    rng = np.random.default_rng(0)
    tables, cases, windows = 200, 6, 8

    def rows(factor: float) -> list[CaseRow]:
        noisy = factor * np.exp(0.05 * rng.standard_normal((cases, windows)))
        return [CaseRow.model_validate(case(list(map(float, ms)), F=8 * i)) for i, ms in enumerate(noisy, 1)]

    false = 0
    for _ in range(tables):
        decided, _ = decide(list(zip(rows(100), rows(103), strict=True)), 0.03)
        false += any(one.finding is Finding.REGRESSION for one in decided)
    assert 0 < false <= 0.05 * tables


def test_windows_that_drift_or_lie_apart_are_told_with_their_report():
    drift = "drifting: +33.3% from first to last window (p = 0.017)"
    drifting = case([100.0, 110.0, 120.0, 130.0, 140.0], unstable=[drift, "warm-up: iteration times still drifted"])
    one = compared(drifting, case([100.0, 100.0, 100.0, 100.0, 400.0]))
    assert one.unstable == (
        f"A {drift}",
        "A warm-up: iteration times still drifted",
        "B outliers: 1 window of 400 ms against 4 windows of 100 ms",
    )


ROUTING = {"imbalance": [1.0], "maxRowsReceived": 1, "minRowsReceived": 1, "remoteRowsSent": 1}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"shape": {"T": 32}}, "shape differs: T=64 D=128 E=16 K=2 in A, T=32 D=128"),
        ({"layers": 2}, "layers differs: 1 in A, 2 in B"),
        ({"precision": "bf16"}, "precision differs: mxfp8 in A, bf16 in B"),
        ({"profile": "A"}, "profile differs: none in A, A in B"),
        ({"implementation": "library"}, "implementation differs: portable in A, library in B"),
        ({"estimator": "median"}, "estimator differs: mean in A, median in B"),
        ({"routing": {"sha256": "b", **ROUTING}}, "routing differs: a in A, b in B"),
        ({"environment": {"hardware": "NVIDIA H200"}}, "hardware differs: Test CPU in A, NVIDIA H200 in B"),
        ({"injected": ["sleep:rank=1"]}, "injected faults differs: none in A, sleep:rank=1 in B"),
        ({"stale": "torch was 2.11.0, is 2.13.0"}, "stale in B: torch was 2.11.0, is 2.13.0"),
    ],
)
def test_cases_that_are_not_the_same_are_not_compared_and_the_reason_is_told(keys: dict[str, Any], why: str):
    old = case(OLD, estimator="mean", routing={"sha256": "a", **ROUTING})
    assert why_not(old, old | keys).startswith(why)


def test_packing_cases_need_equal_profiles_and_stale_ones_of_the_old_report_do_not_count():
    packed = case(OLD, category="packing", profile="A", layers=2)
    one, other = (report(packed, meta={"profiles": {"A": profile}}) for profile in ([1.5, 0.5], [1.5, 0.75]))
    (found,) = compare_reports(one, other, 0.03).not_compared
    assert found.why == "imbalances of the profile differs: 1.5 0.5 in A, 1.5 0.75 in B"
    assert why_not(case(OLD, stale="windows was 3, is 5"), case(OLD)) == "stale in A: windows was 3, is 5"


def test_what_one_report_does_not_record_is_taken_as_equal_and_told():
    plain = {key: value for key, value in case(OLD).items() if key not in ("implementation", "environment")}
    found = compare_reports(report(plain), report(case(SLOW, estimator="mean")), 0.03)
    assert [one.finding for one in found.compared] == [Finding.REGRESSION]
    assert found.assumed == {"implementation": "A", "estimator": "A"}


@pytest.mark.parametrize(
    ("status", "reason", "finding", "exit_status"),
    [
        ("failed", "crashed", Finding.LOST, 1),
        ("failed", "timeout", Finding.LOST, 1),
        ("rejected", "incorrect", Finding.LOST, 1),
        ("rejected", "wrong-workload", Finding.LOST, 1),
        ("rejected", "spread", Finding.UNDECIDED, 3),
        ("rejected", "throttled", Finding.UNDECIDED, 3),
        ("unsupported", None, Finding.UNDECIDED, 3),
        ("not-run", None, Finding.UNDECIDED, 3),
    ],
)
def test_accepted_case_that_fails_or_is_wrong_is_a_finding(status, reason, finding, exit_status):
    kept, gone = case(OLD), case(OLD, F=256)
    entry = {"id": gone["id"], "status": status, "reason": reason, "message": "rank 1 said no"}
    found = compare_reports(report(kept, gone), report(kept, rejected=[entry]), 0.03)
    (one,) = found.not_compared
    assert (one.id, one.finding, found.exit_status) == (gone["id"], finding, exit_status)
    assert one.why == f"{status}, {reason}: rank 1 said no".replace(", None", "")


def test_cases_of_one_report_only_are_listed_and_decide_nothing():
    a, b, c = case(OLD), case(OLD, F=16), case(OLD, F=32)
    old = report(a, b, rejected=[{"id": c["id"], "status": "failed", "reason": "crashed"}])
    new = report(a, c, case(OLD, F=64))
    found = compare_reports(old, new, 0.03)
    assert (found.only_old, found.regained) == ([b["id"]], [c["id"]])
    assert found.only_new == [case(OLD, F=64)["id"]]
    assert found.exit_status == 0


@pytest.mark.parametrize(
    ("ratios", "exit_status"), [([1.0, 1.0], 0), ([1.0, 1.04], 3), ([1.2, 1.0], 1), ([1.2, 1.04], 1)]
)
def test_a_regression_outweighs_doubt_and_doubt_outweighs_a_pass(ratios, exit_status):
    assert compare_reports(*table(*ratios), 0.03).exit_status == exit_status


def test_reports_without_a_case_in_common_are_refused():
    with pytest.raises(UsageError, match=r"no case in common: A has torch-.*-128, and B has torch-.*-64\. Compare two"):
        compare_reports(report(case(OLD)), report(case(OLD, F=64)), 0.03)
    with pytest.raises(UsageError, match="and B has none"):
        compare_reports(report(case(OLD)), report(), 0.03)
    with pytest.raises(UsageError, match="A has no accepted case"):
        compare_reports(report(), report(case(OLD)), 0.03)


def environments(old: dict[str, Any], new: dict[str, Any], cases: int = 1, **metas: Any) -> ReportComparison:
    def made(environment: dict[str, Any], meta: dict[str, Any] | None) -> Report:
        rows = (case(OLD, F=8 * i, environment={"hardware": "Test CPU", **environment}) for i in range(1, cases + 1))
        return report(*rows, meta=meta)

    return compare_reports(made(old, metas.get("old_meta")), made(new, metas.get("new_meta")), 0.03)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"torch": "2.11.0"}, {"torch": "2.13.0"}, [("torch", "2.11.0", "2.13.0", True)]),
        ({"power_limit_w": 700.0}, {"power_limit_w": 500.0}, [("power_limit_w", "700.0", "500.0", True)]),
        ({"library": {"version": "1"}}, {"library": {"version": "2"}}, [("library.version", "1", "2", True)]),
        ({"cuda": None}, {"cuda": "13.0"}, [("cuda", "none", "13.0", True)]),
        ({"host": "a"}, {"host": "b"}, [("host", "a", "b", False)]),
        ({"power_w": {"median": 600}, "samples": 3}, {"power_w": {"median": 300}, "samples": 9}, []),
        ({"sm_clock_mhz": {"median": 1500}}, {"sm_clock_mhz": {"median": 1510}}, []),
        ({"sm_clock_mhz": {"median": 1500}}, {"sm_clock_mhz": {"median": 1400}},
         [("sm_clock_mhz", "1500", "1400", True)]),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)  # fmt: skip
def test_environments_differ_in_what_may_move_a_time_and_in_what_does_not(old, new, told):
    found = environments(old, new, cases=2).environments
    assert [(one.key, one.old, one.new, one.matters) for one in found.differences] == told
    assert all(one.cases == 2 for one in found.differences)


def test_differences_that_matter_come_first_and_clocks_are_told_by_their_medians():
    def clocked(host: str, *clocks_mhz: int) -> Report:
        environments = [{"host": host, "sm_clock_mhz": {"median": clock}} for clock in clocks_mhz]
        return report(*(case(OLD, F=8 * i, environment=environment) for i, environment in enumerate(environments, 1)))

    found = compare_reports(clocked("x", 1500, 1510, 1520), clocked("y", 1500, 1400, 1300), 0.03).environments
    assert [(one.key, one.old, one.new, one.cases) for one in found.differences] == [
        ("sm_clock_mhz", "1515", "1350", 2),
        ("host", "x", "y", 3),
    ]


def test_windows_and_dates_of_meta_and_what_is_not_recorded_are_told():
    found = environments(
        {"driver": "580"},
        {"nccl": "2.28"},
        old_meta={"windows": 5},
        new_meta={"windows": 8, "reportDate": "2026-04-01"},
    ).environments
    assert [(one.key, one.old, one.new) for one in found.differences] == [
        ("windows", "5", "8"),
        ("reportDate", "2026-03-04", "2026-04-01"),
    ]
    assert (found.unrecorded_old, found.unrecorded_new) == (["nccl"], ["driver"])


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"peakAllocatedGiB": 2.0}, {"peakAllocatedGiB": 2.1}, [("peakAllocatedGiB", 0.05)]),
        ({"peakAllocatedGiB": 2.0}, {"peakAllocatedGiB": 2.01}, []),
        ({"peakAllocatedGiB": 2.0, "memorySource": "rss"}, {"peakAllocatedGiB": 2.1, "memorySource": "rss"}, []),
        ({"peakAllocatedGiB": 2.0}, {"peakAllocatedGiB": 4.0, "memorySource": "rss"}, []),
        ({"txBytesByKind": {"dispatch": 100, "combine": 100}}, {"txBytesByKind": {"dispatch": 100, "combine": 150}},
         [("txBytesByKind, all kinds", 0.25)]),
        ({"replayTXBytes": 0}, {"replayTXBytes": 5}, [("replayTXBytes", None)]),
        ({"replayTXBytes": 0}, {"replayTXBytes": None}, []),
    ],
)  # fmt: skip
def test_memory_and_bytes_that_change_beyond_their_tolerance_are_told(old, new, told):
    source = {"memorySource": "allocator"}
    found = compare_reports(report(case(OLD, **source | old)), report(case(OLD, **source | new)), 0.03)
    assert [(one.metric, pytest.approx(one.change)) for one in found.changes] == told
