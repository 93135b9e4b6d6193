"""Nothing in a run folder or a report makes moebench read or write outside of that folder."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.reduce.build import RunFolder, make_case, make_trace
from tests.security.touched import touched
from tests.show.build import row

from moebench.cases.machine import Machine
from moebench.cases.plan import load_plan
from moebench.cli.resuming import resumed_work
from moebench.errors import UsageError
from moebench.launch.journal import Entry
from moebench.rank.trace import write_atomically
from moebench.reduce.load import load_report
from moebench.reduce.report import reduce_runs, write_report
from moebench.status import Status

CASE = make_case()
OUTSIDE = ["../../outside", "..", "/etc", "a/b", "a\x00b", "x" * 300, ""]
MACHINE = Machine(cores=2, available_bytes=2**34)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that went well, and beside it a folder that looks like what a hostile id would lead to."""
    run = RunFolder(tmp_path / "run", [CASE])
    run.run(CASE)
    decoy = tmp_path / "outside" / "1" / "rank-0.json"
    decoy.parent.mkdir(parents=True)
    decoy.write_text(make_trace(CASE, 0).model_dump_json())
    return run


def only_the_run_is_touched(run: RunFolder) -> None:
    """Reducing it, and taking it up again, may fail, but not reach out."""
    with touched(run.path.parent) as paths:
        with suppress(UsageError):
            write_report(reduce_runs([run.path]), run.path / "report.json")
        with suppress(UsageError):
            resumed_work(run.path, MACHINE, [])
    assert run.path / "plan.json" in paths
    assert {path for path in paths if not path.is_relative_to(run.path)} == set()


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("key", ["backend", "profile", "overridden", "backend_path"])
def test_plan_whose_case_is_named_like_a_path_is_refused(run: RunFolder, key: str, name: str):
    path = run.path / "plan.json"
    raw = json.loads(path.read_text())
    raw["cases"][0]["case"][key] = [name] if key == "overridden" else name
    path.write_text(json.dumps(raw))
    with pytest.raises(UsageError, match=key):
        load_plan(run.path)
    only_the_run_is_touched(run)


@pytest.mark.parametrize("name", OUTSIDE)
def test_journal_that_names_a_path_is_read_and_not_followed(run: RunFolder, name: str):
    for status in (None, Status.ACCEPTED):
        run.journal.add(Entry(case=name, attempt=1, status=status, launch=name))
    run.journal.add(Entry(case=CASE.id, attempt=2, launch=name))
    only_the_run_is_touched(run)
    assert [case.id for case in reduce_runs([run.path]).cases] == [CASE.id]


@pytest.mark.parametrize(
    "changes", [{"case_id": "../../outside"}, {"case": make_case("mok")}, {"attempt": -1}, {"rank": -1}]
)
def test_trace_that_names_a_path_or_another_case_is_refused(run: RunFolder, changes: dict[str, Any]):
    trace = make_trace(CASE, 0).model_copy(update=changes)
    (run.path / "traces" / CASE.id / "1" / "rank-0.json").write_text(trace.model_dump_json())
    only_the_run_is_touched(run)
    (rejected,) = reduce_runs([run.path]).rejected
    assert rejected.status is Status.REJECTED


@pytest.mark.parametrize("name", ["journal.jsonl", "traces", "logs", f"traces/{CASE.id}"])
def test_run_that_would_write_through_a_link_is_not_taken_up_again(run: RunFolder, name: str):
    elsewhere = run.path.parent / "elsewhere"
    if (run.path / name).exists():
        (run.path / name).rename(elsewhere)
    (run.path / name).symlink_to(elsewhere)
    with pytest.raises(UsageError, match=f"{name}: a symbolic link"):
        resumed_work(run.path, MACHINE, [])


def test_a_link_in_the_place_of_a_file_under_way_is_not_followed(tmp_path: Path):
    (tmp_path / f".report.json.{os.getpid()}").symlink_to(tmp_path / "outside")
    write_atomically(tmp_path / "report.json", "{}")
    assert (tmp_path / "report.json").read_text() == "{}"
    assert not (tmp_path / "outside").exists()


def test_report_that_names_paths_is_only_read(tmp_path: Path):
    path = tmp_path / "report.json"
    hostile = row("mok", 2.0) | {"id": "../../outside", "backend": "../mok", "profile": "/etc/passwd"}
    rejected = {"id": "/etc/passwd", "status": "failed", "log": "../../outside"}
    meta = {"T": 1, "D": 1, "E": 1, "K": 1, "F": 1}
    path.write_text(json.dumps({"meta": meta, "cases": [hostile], "rejected": [rejected]}))
    with touched(tmp_path) as paths:
        load_report(path)
    assert paths == {path}


def test_what_is_touched_is_seen(tmp_path: Path):
    with touched(tmp_path) as paths:
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "written").write_text("x")
        (tmp_path / "made" / "written").rename(tmp_path / "moved")
    assert paths == {tmp_path / "made", tmp_path / "made" / "written", tmp_path / "moved"}
