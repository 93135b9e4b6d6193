"""What is refused before anything is trained."""

from pathlib import Path

import pytest
import typer
from tests.arms.test_config import WHOLE
from typer.testing import CliRunner

from moebench.cli.arms import arms
from moebench.errors import UsageError
from moebench.launch.lock import locked

app = typer.Typer()
app.command()(arms)


def refused(folder: Path, *arguments: str) -> str:
    given = ["--device", "cpu", "-o", str(folder / "arms.json"), *arguments]
    result = CliRunner().invoke(app, given[2:] if "--resume" in arguments else given)
    assert isinstance(result.exception, UsageError), result.output
    assert not (folder / "arms.run").exists()
    return str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arms", "e2e,remote"], "--arms remote: unknown. Known values: e2e, local"),
        (["--budget", "0"], "budget_seconds: Input should be greater than 0"),
        (["--budget", "nan"], "budget_seconds: Input should be"),
        (["--seed", "-1"], "train.seed: Input should be greater than or equal to 0"),
        (["--preset", "huge"], "Known presets: l40s, tiny"),
        (["--preset", "tiny", "--config", "x.toml"], "--config and --preset: give one of the two"),
        (["--config", "gone.toml"], "gone.toml: not there"),
        (["--ranks", "3"], "4 blocks in units of 1 cannot be split evenly over 3 ranks. Give a divisor of 4"),
        (["--ranks", "2", "--objective", "contrastive"], "only the last of 2 ranks has"),
        (["--objective", "magic"], "Known values: own_head, shared_head, contrastive, regression"),
        (["--mode", "graphed"], "CUDA graphs need a GPU"),
        (["--mode", "fast"], "Known values: eager, compiled, graphed"),
        (["--device", "tpu"], "Known values: auto, cpu, cuda"),
        (["--resume"], "is no folder of an arms run"),
        (["--resume", "--budget", "5"], "--budget: cannot be given with --resume"),
    ],
)
def test_a_mistake_is_told_before_anything_is_trained(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in refused(tmp_path, *arguments)


def test_a_gpu_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = CliRunner().invoke(app, ["--device", "cuda", "-o", str(tmp_path / "arms.json")])
    assert "this machine shows no GPU" in str(result.exception)


def test_a_text_that_is_too_short_for_the_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config, text = tmp_path / "long.toml", tmp_path / "text.txt"
    config.write_text(WHOLE.replace("seq = 12", "seq = 100000"))
    text.write_text("a few words\n" * 20_000)
    assert "a sequence needs 100001" in refused(tmp_path, "--config", str(config), "--data", str(text))


@pytest.fixture
def ready(tmp_path, monkeypatch) -> list[str]:
    """Flags with which a run would begin."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config, text = tmp_path / "mine.toml", tmp_path / "text.txt"
    config.write_text(WHOLE)
    text.write_text("a few words\n" * 20_000)
    (tmp_path / "arms.run").mkdir()
    return ["--device", "cpu", "--config", str(config), "--data", str(text), "-o", str(tmp_path / "arms.json")]


def test_a_folder_that_no_arms_run_made_is_left_alone(tmp_path, ready):
    (tmp_path / "arms.run" / "mine").touch()
    assert "no arms run made it" in str(CliRunner().invoke(app, ready).exception)
    assert (tmp_path / "arms.run" / "mine").exists()


def test_a_run_that_another_process_is_at_is_left_alone(tmp_path, ready):
    with locked(tmp_path / "arms.run"):
        assert "Wait until it has ended" in str(CliRunner().invoke(app, ready).exception)
