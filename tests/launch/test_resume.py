"""A resumed run: nothing measured is lost or measured twice, and what no longer holds is told."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time

import pytest
from tests.e2e.sweeping import Command, moebench, report, until
from tests.launch.small import case_id, write_matrix

pytestmark = pytest.mark.e2e

WIDTHS = [104, 112, 120]
ONE, TWO, THREE = map(case_id, WIDTHS)


def rows(run):
    """(status, attempt that counts, stale) of every planned case."""
    found = report(run)
    ends = {row["id"]: (row["status"], row["attempts"], row.get("stale")) for row in found["rejected"]}
    return ends | {row["id"]: ("accepted", row["attempt"], row.get("stale")) for row in found["cases"]}


def traces(run):
    return {path: path.stat().st_mtime_ns for path in run.glob("traces/*/*/rank-*.json")}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run in which one case of three failed and none was tried again."""
    folder = tmp_path_factory.mktemp("broken")
    matrix = write_matrix(folder / "small.toml", {"torch": WIDTHS})
    sweep = ("sweep", "-m", matrix, "--out", "run", "--attempts", 1, "--inject", f"raise:case={TWO}")
    ended = moebench(*sweep, folder=folder)
    assert (ended.code, ended.stderr) == (3, "")
    assert "To run what is not finished: moebench sweep --resume run\n" in ended.stdout
    return folder


@pytest.fixture
def copy(broken, tmp_path):
    """The broken run in a folder of its own, with its matrix."""
    shutil.copytree(broken / "run", tmp_path / "run", symlinks=True)
    shutil.copy(broken / "small.toml", tmp_path)
    plan = tmp_path / "run" / "plan.json"
    plan.write_text(plan.read_text().replace(str(broken), str(tmp_path)))
    return tmp_path


def test_only_what_is_not_finished_runs_and_then_nothing_is_left(copy):
    run = copy / "run"
    before = traces(run)
    ended = moebench("sweep", "--resume", "run", folder=copy)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.lines[0].startswith("1 case in 1 launch (2 kept)")
    assert rows(run) == {ONE: ("accepted", 1, None), TWO: ("accepted", 2, None), THREE: ("accepted", 1, None)}
    assert before.items() <= traces(run).items()
    again = moebench("sweep", "--resume", "run", folder=copy)
    assert again.code == 0
    assert again.lines[0].startswith("0 cases in 0 launches (3 kept)")


def test_a_changed_matrix_makes_results_stale_until_they_are_asked_for_again(copy):
    run = copy / "run"
    write_matrix(copy / "small.toml", {"torch": [104, 112]}, iterations=3)
    ended = moebench("sweep", "--resume", "run", folder=copy)
    changed, gone = "measure.iterations was 2, is 3", "the matrix no longer has this case"
    assert rows(run) == {ONE: ("accepted", 1, changed), TWO: ("accepted", 2, None), THREE: ("accepted", 1, gone)}
    assert f"stale, 1 case: {changed}; --retry stale runs it again" in ended.stdout
    moebench("sweep", "--resume", "run", "--retry", "stale", folder=copy)
    assert rows(run) == {ONE: ("accepted", 2, None), TWO: ("accepted", 2, None), THREE: ("accepted", 1, gone)}


def test_without_its_matrix_a_run_goes_on_as_planned(copy):
    (copy / "small.toml").unlink()
    ended = moebench("sweep", "--resume", "run", "--retry", "crashed", folder=copy)
    assert ended.code == 0
    assert "the matrix cannot be read again, so the run goes on as it was planned" in ended.stderr
    assert rows(copy / "run")[TWO] == ("accepted", 2, None)


def test_an_attempt_that_all_ranks_finished_is_not_measured_again(copy):
    """The orchestrator died after the ranks had written their traces and before it wrote that down."""
    run = copy / "run"
    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    ending = next(i for i, line in enumerate(lines) if f'"{THREE}"' in line and '"accepted"' in line)
    journal.write_text("".join(lines[:ending]))
    ended = moebench("sweep", "--resume", "run", folder=copy)
    assert ended.lines[0].startswith("1 case in 1 launch (2 kept)")
    assert rows(run)[THREE] == ("accepted", 1, None)


def test_two_sweeps_never_share_a_run_folder(copy):
    slow = Command("sweep", "--resume", "run", "--inject", f"sleep:seconds=2,case={TWO}", folder=copy)
    until(lambda: (copy / "run" / "journal.jsonl").read_text().count('"pid"') == 2, 60, "it has begun")
    second = moebench("sweep", "--resume", "run", folder=copy)
    assert second.code == 2
    assert f"another run has this folder: process {slow.process.pid} on " in second.stderr
    assert slow.wait().code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ep", "2"], "--ep: cannot be given with --resume"),
        (["-m", "quick"], "--matrix: cannot be given with --resume"),
        (["--out", "x"], "--out: cannot be given with --resume"),
        (["--retry", "bad"], "--retry bad: unknown. Known values: accepted, rejected,"),
        (["--inject", "raise:case=nothing"], "it would never strike"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(copy, flags, said):
    before = (copy / "run" / "journal.jsonl").read_bytes()
    ended = moebench("sweep", "--resume", "run", *flags, folder=copy)
    assert (ended.code, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert (copy / "run" / "journal.jsonl").read_bytes() == before


def test_what_a_run_leaves_nobody_else_may_write(broken):
    """Also where the user's umask would let others."""
    folder = broken / "open"
    folder.mkdir()
    script = "import os, runpy, sys; os.umask(0); sys.argv[0] = 'moebench'; runpy.run_module('moebench')"
    command = [sys.executable, "-c", script, "sweep", "-m", "../small.toml", "-k", ONE, "--out", "run"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    left = [folder / "run", *(folder / "run").rglob("*")]
    assert len(left) > 15
    assert [
        path for path in left if not path.is_symlink() and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ] == []


FULL = """
mount -t tmpfs -o size={size} tmpfs {folder} && cd {folder} || exit 99
{python} -m moebench sweep -m {matrix} --out run; echo "ended with $?"
mount -o remount,size=20m {folder}
{python} -m moebench sweep --resume run; echo "ended with $?"
cp run/report.json {kept}
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="mounts a file system in a namespace of its own")
def test_a_full_disk_ends_the_sweep_with_what_was_measured_and_it_goes_on_when_there_is_room(broken, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    fill = {"size": "44k", "folder": folder, "python": sys.executable}
    script = FULL.format(**fill, matrix=broken / "small.toml", kept=tmp_path / "report.json")
    began = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    ended = subprocess.run(began, capture_output=True, text=True, timeout=300, env=os.environ | {"TERM": "dumb"})
    if ended.returncode == 99 or "unshare:" in ended.stderr:
        pytest.skip(f"no mounts here: {ended.stderr}")
    assert "No space left on device: the sweep ends here." in ended.stderr
    assert "moebench sweep --resume " in ended.stderr
    assert "Traceback" not in ended.stderr
    first, second = ended.stdout.split("ended with 3\n")
    assert second.endswith("ended with 0\n")
    shutil.move(tmp_path / "report.json", folder / "report.json")
    assert {end[0] for end in rows(folder).values()} == {"accepted"}
    kept = first.count(" accepted torch-")
    assert 0 < kept < 3
    assert f"({kept} kept)" in second


def test_a_clock_that_jumps_back_changes_nothing(copy):
    """Times in the journal are for people: the order of its lines counts."""
    journal = copy / "run" / "journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    for hours, entry in enumerate(reversed(entries)):
        entry["time"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(hours * 3600)) + "+00:00"
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert moebench("reduce", "run", folder=copy).code == 0
    assert rows(copy / "run")[TWO] == ("failed", 1, None)


def test_accepted_traces_that_are_gone_are_measured_again(copy):
    """The journal is not believed where the traces do not bear it out."""
    shutil.rmtree(copy / "run" / "traces" / ONE)
    ended = moebench("sweep", "--resume", "run", folder=copy)
    assert (ended.code, ended.lines[0][:31]) == (0, "2 cases in 1 launch (1 kept), a")
    assert rows(copy / "run") == {ONE: ("accepted", 2, None), TWO: ("accepted", 2, None), THREE: ("accepted", 1, None)}


def test_without_its_journal_a_run_keeps_what_was_measured_and_reuses_no_folder(copy):
    run = copy / "run"
    (run / "journal.jsonl").write_bytes(os.urandom(3000))
    before = traces(run)
    moebench("sweep", "--resume", "run", folder=copy)
    found = rows(run)
    unknown = "what it was measured with is not known"
    assert found == {ONE: ("accepted", 1, unknown), TWO: ("accepted", 2, None), THREE: ("accepted", 1, unknown)}
    assert before.items() <= traces(run).items()
