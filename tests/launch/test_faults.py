"""One rank fails in every way that we know of; each costs its own case, and bounded time."""

import json

import pytest
from tests.e2e.sweeping import Command, report
from tests.launch.faults import BACKEND, case_id, write_matrix

pytestmark = pytest.mark.e2e

CASE_S = 8
ENDS = {
    "unsupported": ("unsupported", None, ["rank 1", "this rank is on strike"]),
    "raise in set-up": ("failed", "crashed", ["rank 1", "ValueError in set-up: no such kernel"]),
    "out of memory in set-up": ("failed", "out-of-memory", ["rank 1", "set-up", "1000 GiB"]),
    "nan": ("rejected", "incorrect", ["rank 1", "of y of layer 0 is not finite"]),
    "wrong row": ("rejected", "incorrect", ["rank 1", "of y of layer 0", "limit"]),
    "raise": ("failed", "crashed", ["rank 1", "IndexError in timing: row 7 of 5"]),
    "out of memory": ("failed", "out-of-memory", ["rank 1", "timing", "1000 GiB"]),
    "exit": ("failed", "crashed", ["rank 1 ended with exit status 7", "not text"]),
    "kill": ("failed", "crashed", ["rank 1 was killed by SIGKILL"]),
    "hang": ("failed", "timeout", [f"no ending within {CASE_S} s", "stack", "logs/"]),
    "skip a collective": ("failed", "timeout", [f"no ending within {CASE_S} s", "logs/"]),
}
HARMLESS = ["garbage", "slow"]
SWEPT = [*HARMLESS, *ENDS]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    matrix = write_matrix(folder / "faults.toml", SWEPT, [BACKEND, "torch"])
    command = Command("sweep", "-m", matrix, "--case-timeout", CASE_S, "--out", "run", folder=folder)
    ended = command.wait()
    return folder / "run", ended, command


@pytest.fixture(scope="module")
def rows(swept):
    found = report(swept[0])
    return {row["id"]: row for row in found["rejected"]}, {row["id"]: row for row in found["cases"]}


@pytest.mark.parametrize("fault", ENDS)
def test_fault_ends_its_case_with_its_reason_and_names_the_rank(rows, fault):
    row = rows[0][case_id(fault)]
    status, reason, parts = ENDS[fault]
    assert (row["status"], row["reason"], row["attempts"]) == (status, reason, 1)
    for part in parts:
        assert part in row["message"]


@pytest.mark.parametrize("fault", SWEPT)
def test_the_healthy_case_after_a_fault_is_accepted(rows, fault):
    assert case_id(fault, "torch") in rows[1]


def test_garbage_and_slowness_are_no_faults(rows):
    assert {case_id(fault) for fault in HARMLESS} <= set(rows[1])
    assert set(rows[0]) == {case_id(fault) for fault in ENDS}


def test_exit_status_says_that_some_cases_failed(swept):
    assert swept[1].code == 3
    assert swept[1].stderr == ""


def test_each_case_is_one_line_with_its_ending(swept):
    lines = swept[1].lines
    numbered = [line for line in lines if "/26 " in line]
    assert len(numbered) == 26
    assert sum("failed: crashed" in line for line in numbered) == 4
    assert "\x1b" not in swept[1].stdout
    assert "\x00" not in swept[1].stdout


def test_no_process_is_left(swept):
    assert swept[2].processes() == []


def test_faults_found_before_the_first_collective_cost_no_launch(swept):
    """Six faults strike where the ranks cannot agree; each ends its launch, and one more runs the rest."""
    assert len(list((swept[0] / "logs").iterdir())) == 7


def test_after_a_hang_the_logs_hold_the_stack_of_every_rank(swept):
    run = swept[0]
    launch = next(e["launch"] for e in journal_of(run) if e["case"] == case_id("hang"))
    logs = sorted((run / "logs" / launch / "ranks").glob("*/attempt_0/*/stderr.log"))
    assert [path.parent.name for path in logs] == ["0", "1"]
    assert all("most recent call first" in path.read_text(errors="replace") for path in logs)
    assert "in _strike" in logs[1].read_text(errors="replace")


def test_what_a_rank_prints_is_in_its_log_byte_for_byte(swept):
    logs = (swept[0] / "logs").glob("*/ranks/*/attempt_0/1/stdout.log")
    assert any(b"\xff\xfe\x1b[31m\x00 not text \x80" in path.read_bytes() for path in logs)


def test_the_journal_has_one_ending_for_each_case(swept):
    entries = journal_of(swept[0])
    assert len(entries) == len({entry["case"] for entry in entries}) == 26


def journal_of(run):
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
