import json
from pathlib import Path

import pytest
from tests.reduce.build import (
    MEASURE,
    SHAPE,
    RunFolder,
    make_case,
    make_checks,
    make_packing,
    make_trace,
    make_traces,
)

from moebench.errors import UsageError
from moebench.rank.trace import trace_path
from moebench.reduce.load import load_report
from moebench.reduce.report import reduce_runs
from moebench.reduce.write import to_json, write_report
from moebench.status import Reason, Status

DIST, MOK, TORCH = make_case("dist_moe"), make_case("mok"), make_case("torch")

PUBLISHED_KEYS = [
    "id",
    "backend",
    "mode",
    "ep",
    "precision",
    "pipeline",
    "category",
    "F",
    "imbalance",
    "profile",
    "layers",
    "iterationMS",
    "forwardMS",
    "backwardMS",
    "usefulTFPerGPU",
    "meanTXGBps",
    "meanRXGBps",
    "modeledHBMGBps",
    "peakAllocatedGiB",
    "peakReservedBytes",
    "fastMath",
    "sharedSchedule",
]


def ends(report) -> dict[str, tuple]:
    return {entry.id: (entry.status, entry.reason, entry.attempts) for entry in report.rejected}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    made = RunFolder(tmp_path / "run", [DIST, MOK, TORCH])
    for case, ms in ((DIST, 2.0), (MOK, 3.0), (TORCH, 4.0)):
        made.run(case, [[ms, ms], [ms, ms]])
    return made


def test_accepted_run_becomes_rows_with_published_keys_in_order_and_pairs(run: RunFolder):
    report = reduce_runs([run.path])
    raw = json.loads(to_json(report))
    assert list(raw) == ["schemaVersion", "meta", "cases", "pairs", "allPipelinePairs", "rejected"]
    assert list(raw["cases"][0])[:22] == PUBLISHED_KEYS
    assert [row["id"] for row in raw["cases"]] == [TORCH.id, MOK.id, DIST.id]
    assert raw["pairs"] == [{"dist": DIST.id, "mok": MOK.id, "allDistPipelines": [DIST.id]}]
    assert raw["allPipelinePairs"] == [{"dist": DIST.id, "mok": MOK.id}]


def test_meta_counts_what_is_in_the_report(run: RunFolder):
    assert reduce_runs([run.path]).meta.model_dump() == {
        "reportDate": "2026-03-04", "hardware": "Test CPU", "cuda": None,
        "T": 8, "D": 32, "E": 4, "K": 2, "F": 16, "sharedExperts": 1, "sharedPrecision": "BF16",
        "windows": 2, "iterationsPerWindow": 2, "warmups": 0, "acceptedExecutions": 3, "rankTraces": 6,
        "matchedWorkloads": 1, "distPipelinePairs": 1, "balancedRows": 16, "profiles": {"A": [1.5, 0.5]},
    }  # fmt: skip


def test_row_has_times_rates_scope_of_the_check_and_realised_routing(run: RunFolder):
    row = reduce_runs([run.path]).cases[1]
    assert (row.iterationMS, row.forwardMS, row.backwardMS) == (3.0, 3.0, None)
    assert row.windowMS == [3.0, 3.0]
    assert row.spread == 0
    assert row.usefulTFPerGPU == pytest.approx(6 * 3 * 8 * 32 * 16 / 3.0 / 1e9)
    assert (row.meanTXGBps, row.meanRXGBps) == (pytest.approx(16_000 / 6e6), pytest.approx(32_000 / 6e6))
    assert row.logicalTXBytes == 4 * 32 * 8
    assert row.validation.model_dump()["checks"][0] == {
        "when": "before", "tensor": "y", "metric": "relative_l2", "error": 0.002, "limit": 0.008,
        "rank": 0, "layer": 0, "comparisons": 2,
    }  # fmt: skip
    assert row.routing.imbalance == [1.0]
    assert (row.routing.minRowsReceived, row.routing.maxRowsReceived) == (16, 16)
    assert "capacity" not in row.model_dump(exclude_unset=True)
    assert "shape" not in row.model_dump(exclude_unset=True)


def test_validation_tells_the_worst_rank(run: RunFolder):
    run.deliver([make_trace(DIST, 1, checks=make_checks(DIST, error=0.007))])
    check = reduce_runs([run.path]).cases[2].validation.checks[0]
    assert (check.error, check.rank, check.comparisons) == (0.007, 1, 2)


def test_same_traces_give_the_same_bytes(run: RunFolder, tmp_path):
    for name in ("one.json", "two.json"):
        write_report(reduce_runs([run.path]), tmp_path / name)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert to_json(load_report(tmp_path / "one.json")).encode() == (tmp_path / "one.json").read_bytes()


def test_packing_row_has_the_capacity_of_rank_0(tmp_path):
    case = make_packing()
    run = RunFolder(tmp_path / "run", [case])
    run.run(case, capacity={"mine": 1}, peak_reserved_bytes=77)
    row = reduce_runs([run.path]).cases[0]
    assert (row.profile, row.imbalance, row.layers, row.capacity) == ("A", 1.0, 2, {"mine": 1})
    assert row.peakReservedBytes == 77
    assert list(row.model_dump(exclude_unset=True))[22] == "capacity"


def test_case_says_where_shape_or_measure_differ_from_meta(tmp_path):
    case = make_case(shape=SHAPE.model_copy(update={"T": 4, "E": 8}), measure=MEASURE.model_copy(update={"windows": 1}))
    run = RunFolder(tmp_path / "run", [case])
    run.run(case)
    row = reduce_runs([run.path]).cases[0]
    assert row.shape.model_dump(exclude_unset=True) == {"T": 4, "E": 8}
    assert row.measure.model_dump() == {"windows": 1, "iterationsPerWindow": 2, "warmups": 0}
    assert row.spread is None


def test_every_planned_case_ends_in_cases_or_rejected(tmp_path):
    cases = [make_case(f"backend{number}") for number in range(8)]
    accepted, wrong, crashed, unsupported, waiting, partial, stopped, late = cases
    run = RunFolder(tmp_path / "run", cases, {unsupported.id: "needs a GPU"})
    run.run(accepted)
    run.run(wrong, checks=make_checks(wrong, error=1.0))
    run.note(crashed, Status.FAILED, reason=Reason.CRASHED, message="rank 1 exited with code 9")
    run.deliver(make_traces(partial)[:1])
    run.note(stopped)
    run.note(late, Status.FAILED, reason=Reason.TIMEOUT, message="over the deadline of 60 s")
    report = reduce_runs([run.path])
    assert [row.id for row in report.cases] == [accepted.id]
    assert ends(report) == {
        wrong.id: (Status.REJECTED, Reason.INCORRECT, 1),
        crashed.id: (Status.FAILED, Reason.CRASHED, 1),
        unsupported.id: (Status.UNSUPPORTED, None, 0),
        waiting.id: (Status.NOT_RUN, None, 0),
        partial.id: (Status.REJECTED, Reason.INCOMPLETE, 1),
        stopped.id: (Status.NOT_RUN, None, 0),
        late.id: (Status.FAILED, Reason.TIMEOUT, 1),
    }
    assert report.meta.acceptedExecutions == 1
    assert report.rejected[1].message == "rank 1 exited with code 9"


def test_failed_execution_that_left_traces_of_some_windows_gives_no_number(run: RunFolder):
    run.note(DIST, Status.FAILED, reason=Reason.CRASHED, message="exit 1 after window 2 of 5")
    assert ends(reduce_runs([run.path]))[DIST.id] == (Status.FAILED, Reason.CRASHED, 1)


def test_the_last_accepted_attempt_counts_whatever_came_after(run: RunFolder):
    run.note(DIST, attempt=2)
    run.deliver(make_traces(DIST, [[1.0, 1.0]] * 2, attempt=2))
    run.note(DIST, Status.ACCEPTED, attempt=2)
    run.note(DIST, Status.FAILED, attempt=3, reason=Reason.TIMEOUT, message="hung")
    row = reduce_runs([run.path]).cases[2]
    assert (row.iterationMS, row.attempt, row.attempts) == (1.0, 2, 3)


def test_of_bad_attempts_the_last_counts_with_its_log(run: RunFolder):
    other = make_case("other")
    two = RunFolder(run.path.parent / "two", [other])
    for attempt, reason in enumerate([Reason.CRASHED, Reason.TIMEOUT], 1):
        two.note(other, attempt=attempt)
        two.note(other, Status.FAILED, attempt=attempt, reason=reason, message="no", log=f"last words {attempt}")
    (row,) = reduce_runs([two.path]).rejected
    assert (row.reason, row.attempts, row.log) == (Reason.TIMEOUT, 2, "last words 2")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"rank": 1}', "\x00", make_trace(MOK, 1).model_dump_json()], ids=range(6)
)
def test_broken_trace_file_costs_its_case_alone_and_is_named(run: RunFolder, content: str):
    path = trace_path(run.path, DIST.id, 1, 1)
    path.write_text(content)
    report = reduce_runs([run.path])
    assert ends(report) == {DIST.id: (Status.REJECTED, Reason.INCOMPLETE, 1)}
    assert str(path.relative_to(run.path)) in str(report.rejected[0].message)


def test_time_that_a_rank_wrote_as_null_is_invalid_timing(run: RunFolder):
    trace = make_trace(DIST, 1, [[2.0, float("nan")], [2.0, 2.0]])
    run.deliver([trace])
    assert "null" in trace_path(run.path, DIST.id, 1, 1).read_text()
    assert ends(reduce_runs([run.path])) == {DIST.id: (Status.REJECTED, Reason.INVALID_TIMING, 1)}


def test_environment_that_is_not_a_number_is_null_in_the_file(run: RunFolder):
    run.deliver(make_traces(DIST, environment={"power_w": float("nan")}))
    raw = json.loads(to_json(reduce_runs([run.path])), parse_constant=pytest.fail)
    assert raw["cases"][2]["environment"] == {"power_w": None}


def fresh(path: Path, **ms: float) -> RunFolder:
    cases = {"dist": DIST, "mok": MOK}
    run = RunFolder(path, list(cases.values()))
    for name, value in ms.items():
        run.run(cases[name], [[value, value]] * 2)
    run.note(MOK) if not ms else None
    return run


def test_merge_takes_accepted_over_others_and_the_later_given_of_two_accepted(tmp_path):
    one, two = fresh(tmp_path / "one", dist=5.0, mok=6.0), fresh(tmp_path / "two", dist=7.0)
    report = reduce_runs([one.path, two.path])
    assert {row.backend: row.iterationMS for row in report.cases} == {"dist_moe": 7.0, "mok": 6.0}
    assert report.rejected == []
    swapped = reduce_runs([two.path, one.path])
    assert {row.backend: row.iterationMS for row in swapped.cases} == {"dist_moe": 5.0, "mok": 6.0}


def test_merge_of_two_failures_tells_the_later_given(tmp_path):
    one, two = fresh(tmp_path / "one"), fresh(tmp_path / "two")
    one.note(DIST, Status.FAILED, reason=Reason.CRASHED, message="first")
    two.note(DIST, Status.FAILED, reason=Reason.TIMEOUT, message="second")
    assert ends(reduce_runs([one.path, two.path]))[DIST.id] == (Status.FAILED, Reason.TIMEOUT, 1)


def test_merge_refuses_one_id_for_different_work(tmp_path):
    one = fresh(tmp_path / "one", dist=5.0)
    other = make_case("dist_moe", shape=SHAPE.model_copy(update={"T": 4}))
    two = RunFolder(tmp_path / "two", [other])
    two.run(other)
    with pytest.raises(UsageError, match=f"{DIST.id}: its shape is .*T=8.*one.*T=4.*two.*separate reports"):
        reduce_runs([one.path, two.path])


def test_run_in_which_nothing_happened_is_an_error(tmp_path):
    run = RunFolder(tmp_path / "run", [DIST])
    with pytest.raises(UsageError, match="nothing to reduce"):
        reduce_runs([run.path])
    (run.path / "traces").mkdir()
    with pytest.raises(UsageError, match="nothing to reduce"):
        reduce_runs([run.path])


def test_folder_that_is_no_run_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="not a run folder"):
        reduce_runs([tmp_path])
    with pytest.raises(UsageError, match="no run folder was given"):
        reduce_runs([])


def test_report_that_cannot_be_written_is_an_error_and_leaves_nothing(run: RunFolder, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is not there"):
        write_report(reduce_runs([run.path]), tmp_path / "file" / "report.json")


def test_device_or_folder_is_never_replaced_by_a_report(run: RunFolder, tmp_path):
    for target in (Path("/dev/null"), tmp_path):
        with pytest.raises(UsageError, match="not a regular file"):
            write_report(reduce_runs([run.path]), target)
    assert Path("/dev/null").is_char_device()


def test_empty_or_misnamed_attempt_folders_do_not_hide_a_measured_case(run: RunFolder):
    for name in ("9999", "\u0663", "1e3"):
        (run.path / "traces" / DIST.id / name).mkdir()
    assert DIST.id in {row.id for row in reduce_runs([run.path]).cases}


def test_newer_or_empty_plan_is_refused(run: RunFolder):
    plan = json.loads((run.path / "plan.json").read_text())
    for change, said in (({"schema_version": 99}, "newer than"), ({"cases": []}, "`cases` is empty")):
        (run.path / "plan.json").write_text(json.dumps(plan | change))
        with pytest.raises(UsageError, match=said):
            reduce_runs([run.path])
