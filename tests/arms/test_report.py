import io
import json
import math
from pathlib import Path

import pytest
from tests.arms.small import preset

from moebench.arms.data import TextFacts
from moebench.arms.report import make_report, parse_arms
from moebench.arms.results import ArmResult
from moebench.arms.run import ArmsRun, Asked, begin, create_folder
from moebench.errors import MoebenchError, UsageError
from moebench.reduce.load import load_report, read_json
from moebench.reduce.write import to_json
from moebench.show.arms import print_arms
from moebench.show.console import make_console

FACTS = TextFacts(
    source="some text", sha256="0", bytes=1, documents=2, heldout_documents=1, split="by hash", train_tokens=900,
    heldout_tokens=100, tokenizer="given", tokenizer_sha256="1", tokenizer_vocab=300, occurring_share=0.5,
)  # fmt: skip

PUBLISHED = {
    "config": {"vocab": 151936, "dim": 512, "n_blocks": 16, "n_heads": 8, "seq": 512, "mlp_mult": 4},
    "batch": 8, "budget_seconds": 3600, "device": "cuda", "gpu": "NVIDIA L40S",
    "bytes": {
        "activation_bytes_per_seam": 4194304, "seams": 15, "e2e_per_step": 125829120, "local_per_step": 62914560,
        "e2e_allreduce_per_step": 824018944, "e2e_allreduce_non_embed": 201689088, "params": 206004736,
        "params_non_embed": 50422272, "embed_share": 0.755,
    },
    "arms": {
        "e2e": {
            "arm": "e2e", "steps": 20667, "tokens": 84652032, "elapsed_s": 3600.1, "tokens_per_s": 23513.5,
            "final_loss": 4.4996, "final_ppl": 89.98, "peak_vram_bytes": 12266331648, "loss_curve": [12.0, 6.0, 4.5],
        },
        "local": {
            "arm": "local", "steps": 31037, "tokens": 127127552, "elapsed_s": 3600.0, "tokens_per_s": 35313.0,
            "final_loss": 5.8469, "final_ppl": 346.2, "peak_vram_bytes": 9510968832, "loss_curve": [12.0, 7.0, 5.8],
        },
    },
    "traffic_ratio_e2e_over_local": 15.1,
}  # fmt: skip


def result(arm: str, tokens_per_s: float, loss: float | None = 3.0, **keys) -> ArmResult:
    steps = 100
    return ArmResult(
        arm=arm, steps=steps, tokens=steps * 48, elapsed_s=steps * 48 / tokens_per_s, tokens_per_s=tokens_per_s,
        final_loss=loss, final_ppl=None if loss is None else math.exp(loss), peak_vram_bytes=1000,
        loss_curve=[5.0, 4.0], **{"status": "completed", **keys},
    )  # fmt: skip


def report(*repeats: list[ArmResult], partial: str | None = None):
    return make_report(preset(), "eager", 1, "cpu", FACTS, repeats, partial)


def shown(report, width: int = 100) -> str:
    file = io.StringIO()
    print_arms(report, make_console(file=file, width=width))
    return file.getvalue()


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "published.json"
    path.write_text(json.dumps(PUBLISHED))
    return parse_arms(path, read_json(path))


def test_the_published_report_loads_and_comes_back_unchanged(published):
    assert json.loads(to_json(published)) == PUBLISHED
    assert list(json.loads(to_json(published))) == list(PUBLISHED)


def test_the_published_report_is_shown_with_its_ratios(published):
    text = shown(published)
    for part in ("1.50x", "+1.347 nats", "0.775x", "1/15.1", "1/2.0", "NVIDIA L40S", "206,004,736 parameters"):
        assert part in text
    assert "e" in text[text.index("Training loss") :]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_are_no_wider_than_the_terminal(published, width):
    assert max(map(len, shown(published, width).splitlines())) <= width


def test_of_several_repeats_the_median_is_shown_beside_mean_and_interval():
    rates = [(100.0, 150.0), (110.0, 176.0), (90.0, 126.0)]
    made = report(*([result("e2e", e2e, 3.0), result("local", local, 3.5)] for e2e, local in rates))
    assert (made.arms.e2e.tokens_per_s, made.arms.local.tokens_per_s) == (100.0, 150.0)
    assert made.repeats.mean["local"]["tokens_per_s"] == pytest.approx((150 + 176 + 126) / 3)
    speed, gap = made.repeats.tokens_per_s_local_over_e2e, made.repeats.loss_gap
    assert (speed.low, speed.high, speed.level) == (pytest.approx(1.4), pytest.approx(1.6), 0.75)
    assert gap.value == pytest.approx(0.5)
    assert f"tokens/s local over e2e, 3 repeats: {speed.value:.4g}x, 1.4 to 1.6 at 75.0%" in shown(made)


def test_one_repeat_makes_no_claim_of_an_interval():
    assert report([result("e2e", 100.0), result("local", 150.0)]).repeats is None


def test_an_arm_that_diverged_has_no_loss_and_the_report_says_when():
    bad = result("local", 150.0, None, status="diverged", message="no number from step 7 on")
    made = report([result("e2e", 100.0), bad], partial="local: no number from step 7 on")
    raw = json.loads(to_json(made))
    assert raw["arms"]["local"]["final_loss"] is None
    assert raw["ratios"]["loss_gap"] is None
    assert "Partial: local: no number from step 7 on" in shown(made)


def test_a_report_of_one_arm_or_of_none_is_valid_and_shown():
    for repeats in ([[result("local", 150.0)]], []):
        made = report(*repeats, partial="interrupted")
        assert made.ratios is None
        assert "Partial: interrupted" in shown(made)


def test_a_wrong_report_is_named_with_key_and_value():
    path = Path("r.json")
    with pytest.raises(UsageError, match=r'r\.json: key `batch`, value "eight": input should be a valid integer'):
        parse_arms(path, PUBLISHED | {"batch": "eight"})
    with pytest.raises(UsageError, match="written by a newer moebench"):
        parse_arms(path, PUBLISHED | {"schemaVersion": 99})


def test_what_reads_cases_says_that_a_report_of_arms_has_none(tmp_path):
    path = tmp_path / "arms.json"
    path.write_text(json.dumps(PUBLISHED))
    with pytest.raises(UsageError, match="a report of `moebench arms`, which has no cases"):
        load_report(path)


class Trained(ArmsRun):
    """Nothing is trained; what would have been is noted."""

    def _train(self, repeat, arm):
        self.order = [*getattr(self, "order", []), (repeat, arm)]
        return result(arm, 100.0)


class Deaf:
    def began(self, arm, repeat): ...
    def said(self, said): ...
    def ended(self, result): ...


class FakeText:
    facts = FACTS
    folder = Path()


def run(tmp_path, repeats: int) -> Trained:
    asked = Asked(
        preset=preset(), arms=["e2e", "local"], repeats=repeats, ranks=1, device="cpu", mode="eager", data=None,
        tokenizer=None,
    )  # fmt: skip
    folder = tmp_path / "arms.run"
    create_folder(folder)
    begin(folder, asked)
    return Trained(folder, asked, FakeText(), Deaf())


def test_the_order_of_arms_turns_round_from_repeat_to_repeat(tmp_path):
    made = run(tmp_path, 3)
    made.execute()
    assert [arm for _, arm in made.order] == ["e2e", "local", "local", "e2e", "e2e", "local"]
    assert [repeat for repeat, _ in made.order] == [0, 0, 1, 1, 2, 2]
    assert made.report().repeats.order == [["e2e", "local"], ["local", "e2e"], ["e2e", "local"]]


def test_a_run_that_goes_on_keeps_what_is_finished_and_not_what_was_cut_short(tmp_path):
    made = run(tmp_path, 1)
    for arm, status in (("e2e", "completed"), ("local", "interrupted")):
        folder = made.folder / f"1-{arm}"
        folder.mkdir()
        (folder / "result.json").write_text(result(arm, 50.0, status=status).model_dump_json())
    made.execute()
    assert made.order == [(0, "local")]
    assert made.report().arms.e2e.tokens_per_s == 50.0


def test_no_arm_is_begun_after_a_stop(tmp_path):
    made = run(tmp_path, 1)
    made.stop("interrupted (Ctrl-C)")
    made.execute()
    assert not hasattr(made, "order")
    assert made.report().partial == "interrupted (Ctrl-C)"


def test_an_arm_that_says_nothing_is_ended(tmp_path, monkeypatch):
    made = run(tmp_path, 1)
    monkeypatch.setattr("moebench.arms.run.STALLED_S", 0.3)
    monkeypatch.setattr(made, "_command", lambda folder: ["sleep", "60"])
    with pytest.raises(MoebenchError, match=r"the e2e arm said nothing for 0\.3 s, and was ended"):
        ArmsRun._train(made, 0, "e2e")


def test_an_arm_that_dies_is_told_with_the_end_of_its_log(tmp_path, monkeypatch):
    made = run(tmp_path, 1)
    monkeypatch.setattr(made, "_command", lambda folder: ["sh", "-c", "echo the last words >&2; exit 7"])
    with pytest.raises(MoebenchError, match="the e2e arm ended with status 7: the last words"):
        ArmsRun._train(made, 0, "e2e")
