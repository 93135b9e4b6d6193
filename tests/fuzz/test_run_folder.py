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
from tests.fuzz.mutate import files
from tests.fuzz.shown import assert_shows, assert_told
from tests.reduce.build import RunFolder, make_case, make_packing

from moebench.errors import MoebenchError
from moebench.launch.history import History
from moebench.launch.journal import Entry, Journal, Sweep
from moebench.reduce.load import load_report
from moebench.reduce.report import reduce_runs, write_report
from moebench.reduce.schema import Report
from moebench.status import Reason, Status

CASES = [make_case("mok"), make_case("dist_moe"), make_packing("mok"), make_case("torch", ep=1)]
FAILED, UNSUPPORTED = make_case("torch", ep=2), make_case("torch", ep=4)
IDS = sorted(case.id for case in [*CASES, FAILED, UNSUPPORTED])


@dataclass(frozen=True)
class Made:
    """A run folder, and a place outside of it for its report."""

    run: Path
    report: Path

    def reduced(self) -> Report:
        """Its report, written and read back, which must give the same tables."""
        report = reduce_runs([self.run])
        write_report(report, self.report)
        assert_shows(load_report(self.report))
        return report

    def changed(self, path: Path, data: bytes, check: Callable[[], Any]) -> None:
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            check()
        finally:
            path.write_bytes(before)

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


def of_file(place: Callable[[Path], Path]) -> st.SearchStrategy[Any]:
    """Damage to one JSON file of the run, whose text is known only when the run is there."""
    return st.data().map(lambda data: lambda run: data.draw(files(json.loads(place(run).read_text()))))


def trace_of(run: Path, case: Any, rank: int) -> Path:
    return run / "traces" / case.id / "1" / f"rank-{rank}.json"


@examples(80)
@given(data=st.data())
def test_a_plan_is_reduced_or_refused_in_words(made: Made, data: st.DataObject):
    path = made.run / "plan.json"
    made.changed(path, data.draw(files(json.loads(path.read_text()))), made.told_or_reduced)


@examples(120)
@given(data=st.data())
def test_a_trace_costs_no_more_than_its_own_case(made: Made, data: st.DataObject):
    case = data.draw(st.sampled_from(CASES))
    path = trace_of(made.run, case, data.draw(st.integers(0, case.ep - 1)))

    def check() -> None:
        report = made.reduced()
        assert sorted(row.id for row in [*report.cases, *report.rejected]) == IDS
        lost = {row.id: row for row in report.rejected} | {}
        assert set(lost) <= {case.id, FAILED.id, UNSUPPORTED.id}
        assert case.id not in lost or lost[case.id].message

    made.changed(path, data.draw(files(json.loads(path.read_text()))), check)


@examples(60)
@given(data=st.data())
def test_a_journal_never_loses_a_planned_case(made: Made, data: st.DataObject):
    path = made.run / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    damage = files(lines).map(lambda raw: _as_lines(raw))

    def check() -> None:
        report = made.reduced()
        assert sorted(row.id for row in [*report.cases, *report.rejected]) == IDS

    made.changed(path, data.draw(damage), check)


def _as_lines(raw: bytes) -> bytes:
    """A JSON array as JSON lines; whatever is none, as it is."""
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    return b"\n".join(json.dumps(entry).encode() for entry in entries) if isinstance(entries, list) else raw
