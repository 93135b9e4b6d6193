"""Whatever the files of a run folder hold, it is reduced or refused in words, and the report can be read again."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.budget import examples
from tests.fuzz.mutate import as_json, as_lines, assert_survives, files
from tests.fuzz.shown import assert_prints, assert_told
from tests.reduce.build import RunFolder, make_case, make_packing

from moebench.cases.case import Category, Measure
from moebench.cases.machine import Machine
from moebench.cases.plan import Plan
from moebench.cli.resuming import resumed_work
from moebench.errors import MoebenchError
from moebench.launch.journal import Sweep
from moebench.reduce.load import load_report
from moebench.reduce.report import reduce_runs
from moebench.reduce.schema import Report
from moebench.reduce.write import to_json
from moebench.status import Reason, Status

CASES = [make_case("mok"), make_case("dist_moe"), make_packing("mok"), make_case("torch", ep=1)]
FAILED, UNSUPPORTED = make_case("torch", ep=2), make_case("torch", ep=4)
MACHINE = Machine(cores=2, available_bytes=2**34, processor="x86")
LONE = make_case(
    "dist_moe",
    ep=1,
    category=Category.PACKING,
    profile="A",
    measure=Measure(windows=1, iterations=1, warmups=0),
)
IDS = sorted(case.id for case in [*CASES, FAILED, UNSUPPORTED])


@dataclass(frozen=True)
class Made:
    """A run folder, and a place outside of it for its report."""

    run: Path
    report: Path

    def reduced(self) -> Report:
        """Its report, written and read back, which must give the same tables."""
        report = reduce_runs([self.run])
        self.report.write_text(to_json(report))
        assert_prints(load_report(self.report))
        return report

    def changed(self, path: Path, data: bytes, check: Callable[[], Any]) -> None:
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            check()
        finally:
            path.write_bytes(before)

    def told_or_resumed(self) -> None:
        """What a resumed sweep would do, without doing it; the plan that it would write can be read again."""
        try:
            to_do, _, _ = resumed_work(self.run, MACHINE, [])
        except MoebenchError as error:
            assert_told(error, self.run)
        else:
            Plan.model_validate_json(to_do.plan.model_dump_json())

    def told_or_reduced(self) -> None:
        try:
            self.reduced()
        except MoebenchError as error:
            assert_told(error, self.run)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    run = RunFolder(folder / "run", [*CASES, FAILED, UNSUPPORTED], {UNSUPPORTED.id: "needs 4 GPUs"})
    run.journal.add(Sweep(pid=1, host="here", surroundings={"torch": "2.13"}))
    for case in CASES:
        run.run(case)
    run.note(FAILED)
    run.note(FAILED, Status.FAILED, reason=Reason.CRASHED, message="rank 1 was killed by SIGKILL", log="Killed")
    return Made(folder / "run", folder / "report.json")


def test_run_is_whole_before_anything_happens_to_it(made: Made):
    report = made.reduced()
    assert sorted(row.id for row in report.cases) == sorted(case.id for case in CASES)
    assert {row.id: row.status for row in report.rejected} == {
        FAILED.id: Status.FAILED,
        UNSUPPORTED.id: Status.UNSUPPORTED,
    }


def trace_of(run: Path, case: Any, rank: int) -> Path:
    return run / "traces" / case.id / "1" / f"rank-{rank}.json"


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run of one case on one rank: there is little beside what goes wrong in it."""
    folder = tmp_path_factory.mktemp("lone")
    RunFolder(folder / "run", [LONE]).run(LONE, capacity={"slots": 1})
    return Made(folder / "run", folder / "report.json")


def test_no_single_accident_to_a_plan_is_fatal(lone: Made):
    path = lone.run / "plan.json"

    def check() -> None:
        lone.told_or_reduced()
        lone.told_or_resumed()

    assert_survives(json.loads(path.read_text()), lambda changed: lone.changed(path, as_json(changed), check))


def test_no_single_accident_to_what_a_plan_was_asked_for_is_fatal(lone: Made):
    path = lone.run / "plan.json"
    plan = json.loads(path.read_text())
    asked = {"matrix": "conformance", "ep": ["2"], "tokens": "8", "device": "cpu", "measured": {"windows": 2}}

    def check(changed: Any) -> None:
        lone.changed(path, as_json(plan | {"asked": changed}), lone.told_or_resumed)

    assert_survives(asked, check)


def test_no_single_accident_to_a_trace_is_fatal(lone: Made):
    path = trace_of(lone.run, LONE, 0)
    assert_survives(json.loads(path.read_text()), lambda changed: lone.changed(path, as_json(changed), lone.reduced))


@examples(60)
@given(data=st.data())
def test_a_plan_is_reduced_or_refused_in_words(made: Made, data: st.DataObject):
    path = made.run / "plan.json"
    made.changed(path, data.draw(files(json.loads(path.read_text()))), made.told_or_reduced)


@examples(60)
@given(data=st.data())
def test_a_trace_costs_no_more_than_its_own_case(made: Made, data: st.DataObject):
    case = data.draw(st.sampled_from(CASES))
    path = trace_of(made.run, case, data.draw(st.integers(0, case.ep - 1)))

    def check() -> None:
        report = made.reduced()
        assert sorted(row.id for row in [*report.cases, *report.rejected]) == IDS
        lost = {row.id: row.message for row in report.rejected}
        assert set(lost) <= {case.id, FAILED.id, UNSUPPORTED.id}
        assert all(lost.values())

    made.changed(path, data.draw(files(json.loads(path.read_text()))), check)


@examples(50)
@given(data=st.data())
def test_a_journal_never_loses_a_planned_case(made: Made, data: st.DataObject):
    path = made.run / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    def check() -> None:
        report = made.reduced()
        assert sorted(row.id for row in [*report.cases, *report.rejected]) == IDS

    made.changed(path, data.draw(files(lines).map(as_lines) | st.binary()), check)
