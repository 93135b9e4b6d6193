"""`moebench arms` from end to end, in processes of its own: over 1, 2 and 4 ranks, interrupted, and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.arms.small import as_toml, write_text

from moebench.arms.report import ArmsReport, parse_arms
from moebench.reduce.load import read_json

SEAM = 4 * 12 * 16 * 2


class Place:
    """A folder with a configuration and texts, in which moebench runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "text").mkdir()
        self.data = [word for path in write_text(folder / "text") for word in ("--data", str(path))]

    def start(self, steps: int, *arguments: str, resume: bool = False) -> "subprocess.Popen[str]":
        config = as_toml(train={"budget_seconds": 600.0, "max_steps": steps}, data={"heldout_share": 0.2})
        (self.folder / "mine.toml").write_text(config)
        given = [] if resume else ["--config", "mine.toml", "--device", "cpu", *self.data]
        return subprocess.Popen(
            [sys.executable, "-m", "moebench", "arms", *given, *arguments],
            cwd=self.folder,
            env=os.environ | {"XDG_CACHE_HOME": str(self.folder / "cache"), "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, steps: int, *arguments: str, resume: bool = False, status: int = 0) -> tuple[str, str]:
        process = self.start(steps, *arguments, resume=resume)
        out, err = process.communicate(timeout=120)
        assert process.returncode == status, out + err
        return out, err

    def report(self, name: str = "arms.json") -> ArmsReport:
        return parse_arms(self.folder / name, read_json(self.folder / name))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("arms"))


@pytest.fixture(scope="module")
def one_rank(place) -> tuple[str, str]:
    return place.run(24)


@pytest.fixture(scope="module", params=[2, 4])
def several(request, place, one_rank) -> tuple[int, ArmsReport, str]:
    name = f"ranks-{request.param}.json"
    out, _ = place.run(24, "--ranks", str(request.param), "-o", name)
    return request.param, place.report(name), out


def test_the_report_has_the_published_keys_in_their_order_and_then_ours(place, one_rank):
    raw = json.loads((place.folder / "arms.json").read_text())
    assert list(raw)[:8] == [
        "config", "batch", "budget_seconds", "device", "gpu", "bytes", "arms", "traffic_ratio_e2e_over_local"
    ]  # fmt: skip
    assert {"schemaVersion", "local_objective", "eval", "data", "environment", "seed"} <= set(raw)
    assert list(raw["config"]) == ["vocab", "dim", "n_blocks", "n_heads", "seq", "mlp_mult"]
    assert list(raw["bytes"]) == [
        "activation_bytes_per_seam", "seams", "e2e_per_step", "local_per_step", "e2e_allreduce_per_step",
        "e2e_allreduce_non_embed", "params", "params_non_embed", "embed_share",
    ]  # fmt: skip
    assert list(raw["arms"]) == ["e2e", "local"]
    for name, arm in raw["arms"].items():
        assert list(arm)[:9] == [
            "arm", "steps", "tokens", "elapsed_s", "tokens_per_s", "final_loss", "final_ppl", "peak_vram_bytes",
            "loss_curve",
        ]  # fmt: skip
        assert (arm["arm"], arm["steps"], arm["tokens"]) == (name, 24, 24 * 4 * 12)
        assert arm["tokens_per_s"] == pytest.approx(arm["tokens"] / arm["elapsed_s"])
        assert len(arm["loss_curve"]) == 24
        assert arm["status"] == "completed"
    assert raw["partial"] is None
    assert raw["seam_traffic_ratio_e2e_over_local"] == 2.0


def test_progress_is_plain_lines_where_there_is_no_terminal(one_rank):
    out, err = one_rank
    assert "\x1b" not in out + err
    assert "e2e completed: 24 steps" in err
    assert err.count("\n") < 40


def test_between_ranks_exactly_the_modeled_bytes_are_measured(several):
    ranks, report, out = several
    for arm, per_step in ((report.arms.e2e, 2 * SEAM), (report.arms.local, SEAM)):
        assert [seam.ranks for seam in arm.seams] == [[rank, rank + 1] for rank in range(ranks - 1)]
        for seam in arm.seams:
            assert seam.measured_bytes_per_step == seam.modeled_bytes_per_step == per_step
    assert f"between ranks 0 and 1: {2 * SEAM:,} bytes a step measured, as modeled" in " ".join(out.split())


def test_over_ranks_both_arms_learn_what_they_learn_on_one(several, place):
    _, report, _ = several
    whole = place.report()
    for arm in ("e2e", "local"):
        one, split = getattr(whole.arms, arm), getattr(report.arms, arm)
        assert split.steps == one.steps
        assert split.loss_curve == pytest.approx(one.loss_curve, rel=0.01)
        assert split.final_loss == pytest.approx(one.final_loss, rel=0.01)


def test_show_draws_the_report_and_prints_its_json(place, one_rank):
    def shown(*arguments: str) -> str:
        command = [sys.executable, "-m", "moebench", "show", "arms.json", *arguments]
        return subprocess.run(command, cwd=place.folder, capture_output=True, check=True, text=True).stdout

    assert "held-out loss" in shown()
    assert json.loads(shown("--json")) == json.loads((place.folder / "arms.json").read_text())


def test_an_interrupted_run_is_reported_as_such_and_can_go_on(place, one_rank):
    process = place.start(800, "--arms", "e2e", "-o", "cut.json")
    progress = place.folder / "cut.run" / "1-e2e" / "progress.jsonl"
    end = time.monotonic() + 60
    while not (progress.exists() and '"training"' in progress.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    cut = place.report("cut.json")
    assert cut.partial.startswith("interrupted (Ctrl-C)")
    assert (cut.arms.e2e.status, cut.arms.local) == ("interrupted", None)
    assert 0 < cut.arms.e2e.steps < 800
    assert cut.arms.e2e.final_loss is not None
    place.run(800, "-o", "cut.json", "--resume", resume=True)
    whole = place.report("cut.json")
    assert whole.partial is None
    assert (whole.arms.e2e.steps, whole.arms.e2e.resumed) == (800, True)
    assert whole.arms.e2e.elapsed_s > cut.arms.e2e.elapsed_s


def test_what_fails_in_a_rank_is_told_in_a_paragraph(place, one_rank):
    """A checkpoint that is found corrupt: the arm's process says so, moebench passes it on."""
    run = place.folder / "cut.run"
    assert run.exists(), "made by the test before"
    (run / "1-e2e" / "result.json").unlink()
    (run / "1-e2e" / "checkpoint").mkdir(exist_ok=True)
    (run / "1-e2e" / "checkpoint" / "latest.json").write_text("{")
    _, err = place.run(800, "-o", "cut.json", "--resume", resume=True, status=2)
    assert "the checkpoint is corrupt" in err
    assert "Traceback" not in err
    assert "checkpoint is corrupt" in place.report("cut.json").partial
