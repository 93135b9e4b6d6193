import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.reduce.build import RunFolder, make_case
from tests.reference import PATH
from typer.testing import CliRunner

from moebench.cli.pair import pair
from moebench.cli.reduce import reduce
from moebench.cli.schema import schema
from moebench.cli.show import show
from moebench.errors import UsageError
from moebench.reduce.load import load_report

app = typer.Typer()
for command in (pair, reduce, schema, show):
    app.command()(command)


def moebench(*arguments: object):
    """Runs a command; an error of the user's is raised, as cli/app.py will catch it."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def run_folder(path: Path) -> RunFolder:
    cases = [make_case("dist_moe"), make_case("mok")]
    run = RunFolder(path, cases)
    for case in cases:
        run.run(case)
    return run


def test_pair_prints_the_22_published_pairs():
    result = moebench("pair", PATH)
    assert "22 pairs (33 pipeline pairs)" in result.stdout
    assert result.stderr == ""


def test_pair_json_is_the_pairs_and_nothing_else():
    raw = json.loads(PATH.read_text())
    assert json.loads(moebench("pair", PATH, "--json").stdout) == {
        "pairs": raw["pairs"],
        "allPipelinePairs": raw["allPipelinePairs"],
    }


def test_pair_warns_on_stderr_when_the_file_pairs_otherwise(tmp_path):
    raw = json.loads(PATH.read_text())
    correct = raw["pairs"].pop()
    (tmp_path / "r.json").write_text(json.dumps(raw))
    result = moebench("pair", tmp_path / "r.json", "--json")
    assert json.loads(result.stdout)["pairs"][-1] == correct
    assert "its own `pairs` (21) differ" in " ".join(result.stderr.split())


def test_show_json_is_the_report_unchanged():
    assert json.loads(moebench("show", PATH, "--json").stdout) == json.loads(PATH.read_text())


def test_show_without_a_name_shows_the_latest_report_and_falls_back_to_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no report.*moebench sweep"):
        moebench("show")
    for age, name in enumerate(("old", "new")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        path = tmp_path / "runs" / name / "report.json"
        path.write_bytes(PATH.read_bytes())
        os.utime(path, (1e9 + age, 1e9 + age))
    assert "runs/new/report.json" in "".join(moebench("show").stdout.split())
    (tmp_path / "runs" / "latest").symlink_to("old")
    assert "runs/latest/report.json" in "".join(moebench("show").stdout.split())


def test_show_takes_a_run_folder_and_says_what_a_folder_lacks(tmp_path):
    run = run_folder(tmp_path / "run")
    with pytest.raises(UsageError, match=r"no report\.json yet.*moebench reduce"):
        moebench("show", run.path)
    moebench("reduce", run.path)
    assert "2 of 2 planned cases accepted" in moebench("show", run.path).stdout
    with pytest.raises(UsageError, match="neither a report nor a run folder"):
        moebench("show", tmp_path)


def test_reduce_writes_into_the_run_and_prints_path_and_pairs(tmp_path):
    run = run_folder(tmp_path / "run")
    result = moebench("reduce", run.path)
    assert "1 pair (1 pipeline pair)" in result.stdout
    assert str(run.path / "report.json") in "".join(result.stdout.split())
    assert len(load_report(run.path / "report.json").cases) == 2


def test_reduce_of_several_runs_goes_to_its_own_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = run_folder(tmp_path / "one"), run_folder(tmp_path / "two")
    moebench("reduce", one.path, two.path)
    assert (tmp_path / "merged-report.json").is_file()
    moebench("reduce", one.path, two.path, "-o", tmp_path / "both.json")
    assert (tmp_path / "both.json").read_bytes() == (tmp_path / "merged-report.json").read_bytes()


def test_schema_is_json_schema():
    assert "iterationMS" in json.loads(moebench("schema").stdout)["$defs"]["CaseRow"]["properties"]


SHOW = "from moebench.cli.show import show; from pathlib import Path; show(Path({path!r}))"


def shown_in_terminal(**env: str) -> bytes:
    """What a pseudo-terminal receives."""
    import pty

    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **env}
    code = SHOW.format(path=str(PATH))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=terminal, env=environment)
    os.close(terminal)
    received = b""
    try:
        while chunk := os.read(controller, 65536):
            received += chunk
    except OSError:
        pass
    os.close(controller)
    assert process.wait(timeout=30) == 0
    return received


def test_terminal_gets_colours_unless_no_color_is_set():
    assert b"\x1b[32m" in shown_in_terminal(NO_COLOR="")
    assert not re.search(rb"\x1b\[3\dm", shown_in_terminal(NO_COLOR="1"))


def test_pipe_gets_no_escape_sequences():
    code = SHOW.format(path=str(PATH))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert b"\x1b" not in result.stdout


@pytest.mark.parametrize("module", ["reduce", "pair", "show", "schema"])
def test_command_modules_and_the_package_import_nothing_heavy(module: str):
    code = f"import sys, moebench.cli.{module}; assert not {{'torch', 'pandas', 'pydantic'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
