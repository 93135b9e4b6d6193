"""Rank traces that no rank of ours would have written: each costs its own case, and is named."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.reduce.build import RunFolder, make_case

from moebench.reduce.report import reduce_runs
from moebench.status import Reason, Status

CASE = make_case()


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """The traces of a run of one case on two ranks."""
    run = RunFolder(tmp_path / "run", [CASE])
    run.run(CASE)
    return run.path / "traces" / CASE.id / "1"


def rejected(traces: Path) -> tuple[Reason | None, str]:
    (row,) = reduce_runs([traces.parents[2]]).rejected
    assert row.status is Status.REJECTED
    return row.reason, str(row.message)


def change(path: Path, changed: Callable[[dict[str, Any]], Any]) -> None:
    raw = json.loads(path.read_text())
    changed(raw)
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize("name", ["rank-2.json", "rank-02.json", "rank-x.json", "rank-\x1b[2J.json"])
def test_trace_of_a_rank_that_the_case_does_not_have_is_another_workload(traces: Path, name: str):
    (traces / name).write_bytes((traces / "rank-1.json").read_bytes())
    reason, message = rejected(traces)
    assert reason is Reason.WRONG_WORKLOAD
    assert message == f"more ranks ran than the 2 that the case has: there is {name.replace(chr(27), chr(92) + 'x1b')}"


@pytest.mark.parametrize(
    ("changed", "reason", "said"),
    [
        (lambda raw: raw["windows"][0].update(tx_bytes=-1), Reason.INCOMPLETE, "windows.0.tx_bytes: "),
        (lambda raw: raw["windows"][0].update(rx_bytes=2**63), Reason.INCOMPLETE, "windows.0.rx_bytes: "),
        (lambda raw: raw["tx_bytes_by_kind"].update(x=-1), Reason.INCOMPLETE, "tx_bytes_by_kind.x: "),
        (lambda raw: raw.update(peak_allocated_bytes=-1), Reason.INCOMPLETE, "peak_allocated_bytes: "),
        (lambda raw: raw["environment"].update(host={}), Reason.INCOMPLETE, "`host` must be a text or null"),
        (lambda raw: raw["environment"].update(gpu_shared_by=None), Reason.INCOMPLETE, "must be a whole number"),
        (lambda raw: raw["environment"].update(x=2**70), Reason.INCOMPLETE, "environment.x: over 64 bits"),
        (lambda raw: raw.update(capacity={"x": float("nan")}), Reason.INCOMPLETE, "capacity.x: JSON has no NaN"),
        (lambda raw: raw["windows"][1].update(seconds=1.0), Reason.INVALID_TIMING, "iterations take 0.004 s"),
        (lambda raw: raw["windows"][1]["forward_ms"].__setitem__(0, 5e-324), Reason.INVALID_TIMING, "4.94066e-324"),
        (lambda raw: raw.update(case_id="../../x\x1b"), Reason.INCOMPLETE, "it is of ../../x\\x1b, rank 1, attempt 1"),
    ],
)
def test_trace_that_no_rank_would_have_written_is_named(traces: Path, changed, reason: Reason, said: str):
    change(traces / "rank-1.json", changed)
    found, message = rejected(traces)
    assert found is reason
    assert said in message
    assert "rank-1.json" in message or "rank 1" in message


def test_what_is_no_file_is_not_waited_for(traces: Path):
    (traces / "rank-1.json").unlink()
    os.mkfifo(traces / "rank-1.json")
    reason, message = rejected(traces)
    assert reason is Reason.INCOMPLETE
    assert "rank-1.json: not a regular file" in message
