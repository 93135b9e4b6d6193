"""What a sweep refuses before anything is launched, and what it leaves when its time is over."""

import pytest
from tests.e2e.sweeping import moebench, report
from typer.testing import CliRunner

from moebench.cli.app import app
from moebench.errors import UsageError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(line: str) -> str:
    """The paragraph of a sweep that is refused: nothing on standard output, and no run folder."""
    result = CliRunner().invoke(app, ["sweep", *line.split()])
    assert isinstance(result.exception, UsageError), result.output
    assert result.exception.exit_code == 2
    assert result.stdout == ""
    return str(result.exception)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--device tpu", ["--device tpu", "auto, cpu, cuda"]),
        ("--tokens 16777216 -k torch-training-ep2-*", ["can run here", "GiB", "moebench plan"]),
        ("--ep 3", ["none of the", "E=16 experts do not divide over ep=3 ranks"]),
        ("-k nothing-*", ["no case is left with -k nothing-*"]),
        ("--backend nope", ["--backend nope", "dist_moe, mok, torch", "package.module:Class"]),
        ("--backend tests.no.such:Class", ["tests.no.such"]),
        ("--mode train", ["--mode train", "inference, training"]),
        ("-m absent.toml", ["absent.toml"]),
    ],
)
def test_refusal_names_what_was_asked_and_leaves_no_run_folder(here, line, parts):
    message = refused(line)
    for part in parts:
        assert part in message
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("flag", ["--time-budget", "--case-timeout", "--start-timeout"])
@pytest.mark.parametrize("value", ["0", "-1", "soon"])
def test_limits_of_time_are_a_second_or_more(here, flag, value):
    result = CliRunner().invoke(app, ["sweep", flag, value])
    assert result.exit_code == 2
    assert flag in result.output
    assert list(here.iterdir()) == []


def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_runs(here):
    (here / "file").touch()
    assert f"--out {here}/file/run: the run folder cannot be made" in refused("--out file/run")


def test_a_mistake_is_one_paragraph_and_never_a_traceback(here):
    ended = moebench("sweep", "--device", "tpu", folder=here)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == "moebench: --device tpu: unknown. Known values: auto, cpu, cuda.\n"


@pytest.mark.e2e
def test_used_up_time_leaves_the_rest_not_run(here):
    flags = ("--time-budget", "1", "-k", "*-inference-ep2-bf16-*-single_layer-*", "-k", "*-ep4-bf16-*-packing-*")
    ended = moebench("sweep", *flags, folder=here)
    assert (ended.code, ended.stderr) == (3, "")
    found = report(here / "runs" / "latest")
    assert found["cases"] == []
    assert len(found["rejected"]) == 9
    for row in found["rejected"]:
        assert (row["status"], row["reason"], row["attempts"]) == ("not-run", None, 0)
        assert row["message"] == "the time budget of 1 s was used up"
    assert len(list((here / "runs" / "latest" / "logs").iterdir())) == 1
