"""Ctrl-C, a killed torchrun, a killed orchestrator, two sweeps at once: nothing is left behind."""

import os
import signal

import pytest
from tests.e2e.sweeping import Command, report, until
from tests.launch.small import case_id, write_matrix

pytestmark = pytest.mark.e2e

SLOW, SLOW_TOO, QUICK = (case_id(F) for F in (104, 112, 120))
GONE_S = 20
UP_S = 120


def slow_sweep(folder, iterations):
    """Two slow cases, and a quick one."""
    matrix = write_matrix(folder / "slow.toml", {"torch": [104, 112, 120]}, iterations)
    slow = [word for case in (SLOW, SLOW_TOO) for word in ("--inject", f"sleep:seconds=0.4,case={case}")]
    return Command("sweep", "-m", matrix, "--out", "run", "--attempts", 1, *slow, folder=folder)


def begun(command, folder, case):
    """Wait until a case is under way."""

    def is_timed():
        files = (folder / "run" / "logs").glob("*/events/rank-0.jsonl")
        return any(case in line and "timing" in line for file in files for line in file.read_text().splitlines())

    until(is_timed, UP_S, f"{case} in timing")


def statuses(folder):
    """How each case of the report ended, after how many attempts."""
    found = report(folder / "run")
    ends = {row["id"]: (row["status"], row["attempts"]) for row in found["rejected"]}
    return ends | {row["id"]: ("accepted", 1) for row in found["cases"]}


def test_ctrl_c_finishes_the_current_case_and_reports_the_rest_as_not_run(tmp_path):
    command = slow_sweep(tmp_path, iterations=4)
    begun(command, tmp_path, SLOW)
    os.kill(command.process.pid, signal.SIGINT)
    ended = command.wait(60)
    assert ended.code == 130
    assert "finishing the current case" in ended.stdout
    assert statuses(tmp_path) == {
        SLOW: ("accepted", 1),
        SLOW_TOO: ("not-run", 0),
        QUICK: ("not-run", 0),
    }
    assert command.processes() == []


def test_killed_torchrun_costs_one_case_and_ctrl_c_twice_ends_at_once_with_a_report(tmp_path):
    command = slow_sweep(tmp_path, iterations=1000)
    begun(command, tmp_path, SLOW)
    ranks = command.processes("moebench.rank")
    (agent,) = command.processes("moebench.launch.agent")
    os.kill(agent, signal.SIGKILL)
    until(lambda: not set(ranks) & set(command.processes()), GONE_S, "ranks end with their torchrun")

    begun(command, tmp_path, SLOW_TOO)
    os.kill(command.process.pid, signal.SIGINT)
    until(lambda: list((tmp_path / "run" / "logs").glob("*/stop")), GONE_S, "the sweep heard of the first")
    os.kill(command.process.pid, signal.SIGINT)
    ended = command.wait(GONE_S)
    assert (ended.code, ended.stderr) == (130, "")
    assert statuses(tmp_path) == {
        SLOW: ("failed", 1),
        SLOW_TOO: ("not-run", 0),
        QUICK: ("not-run", 0),
    }
    assert command.processes() == []


def test_killed_orchestrator_leaves_no_rank(tmp_path):
    command = slow_sweep(tmp_path, iterations=1000)
    until(lambda: len(list((tmp_path / "run" / "logs").glob("*/events/rank-*"))) == 2, UP_S, "both ranks are up")
    os.kill(command.process.pid, signal.SIGKILL)
    until(lambda: not command.processes(), GONE_S, "nothing outlives the orchestrator")
    command.process.communicate()


def test_two_sweeps_at_once_inside_another_launcher_both_finish(tmp_path):
    """Same folder asked for, and the environment of a rank of another torchrun."""
    matrix = write_matrix(tmp_path / "one.toml", {"torch": [104]})
    stranger = {"WORLD_SIZE": "16", "RANK": "3", "LOCAL_RANK": "3", "MASTER_PORT": "29500", "PET_NPROC_PER_NODE": "7"}
    arguments = ("sweep", "-m", matrix, "--out", "run")
    both = [Command(*arguments, folder=tmp_path, **stranger) for _ in range(2)]
    assert [command.wait(UP_S).code for command in both] == [0, 0]
    for run in ("run", "run-2"):
        assert [row["id"] for row in report(tmp_path / run)["cases"]] == [SLOW]
        assert report(tmp_path / run)["meta"]["rankTraces"] == 2
