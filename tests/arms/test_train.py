"""Training in this process: what the loop decides, and what a checkpoint keeps."""

import math
from types import SimpleNamespace

import pytest
import torch
from tests.arms.small import CPU, loader, preset, ranks_by_frequency, tokens

from moebench.arms.config import Preset
from moebench.arms.e2e_trainer import EndToEnd
from moebench.arms.local_trainer import BlockLocal
from moebench.arms.model import Stage
from moebench.arms.results import ArmOrder, Said
from moebench.arms.schedule import share_of_peak
from moebench.arms.seams import Seams
from moebench.arms.train import Training
from moebench.errors import UsageError

ARMS = ("e2e", "local")


class FakeText:
    def heldout(self):
        return tokens()[:400]


@pytest.fixture
def train(alone, tmp_path):
    """`train(arm, preset, folder)` -> a Training that is ready to run; what it said is in `train.said`."""

    def make(arm: str, chosen: Preset, folder: str = "a", mode: str = "eager") -> Training:
        given = (chosen, mode, CPU, Seams(0, 1), loader(chosen), range(4))
        trainer = EndToEnd(*given) if arm == "e2e" else BlockLocal(*given, ranks_by_frequency())
        trainer.warm_up()
        order = ArmOrder(
            arm=arm, preset=chosen, ranks=1, device="cpu", mode="eager", text=tmp_path, folder=tmp_path / folder,
            stop_file=tmp_path / "stop",
        )  # fmt: skip
        return Training(order, trainer, FakeText(), make.said.append, alone)

    make.said: list[Said] = []
    return make


def steps(count: int, **train_keys) -> Preset:
    return preset(train={"max_steps": count, "budget_seconds": 600.0} | train_keys)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_learns_and_warm_up_leaves_no_trace(train, arm):
    training = train(arm, steps(60))
    fresh = Stage(training.order.preset.model, range(4))
    fresh.initialise(0)
    for name, parameter in training.trainer.stage.named_parameters():
        assert torch.equal(parameter, dict(fresh.named_parameters())[name])
    assert training.run() == ("completed", None)
    assert (training.steps, len(training.losses)) == (60, 60)
    assert training.tokens == 60 * 4 * 12
    assert abs(training.losses[0] - math.log(300)) < 0.1
    assert training.evaluate() < 5.0


def test_both_arms_begin_with_the_same_weights_and_batches(train):
    first = [
        train(arm, preset(train={"max_steps": 1, "budget_seconds": 600.0, "learning_rate": 1e-9}), arm) for arm in ARMS
    ]
    for training in first:
        training.run()
    assert first[0].losses == pytest.approx(first[1].losses, rel=1e-3)


def test_units_that_train_at_once_learn_what_they_would_one_after_the_other(train):
    """The reference: for each batch, block by block, a step on the block's own loss. Without momentum, since units that
    wait for their first batch make steps of zero gradient."""
    chosen = steps(8, beta1=0.0, beta2=0.0, weight_decay=0.0, warmup_steps=0, final_share=1.0)
    training = train("local", chosen)
    training.run()
    reference = train("local", chosen, "b").trainer
    stage, load = reference.local, loader(chosen)
    adams = torch.optim.AdamW(stage.parameters(), lr=0.01, betas=(0.0, 0.0), weight_decay=0.0, fused=True)
    expected = []
    for step in range(8):
        batch = load.batch(step)
        x_UBSD = torch.zeros(4, 4, 12, 16, dtype=torch.bfloat16)
        total = 0.0
        for unit in range(4):
            loss_U, y_UBSD = stage.group_loss(0, x_UBSD, batch.expand(4, -1, -1), torch.arange(0), torch.arange(0))
            total = total + loss_U[unit]
            if unit < 3:
                x_UBSD[unit + 1] = y_UBSD[unit].detach()
        expected.append(float(loss_U[3].detach()))
        total.backward()
        adams.step()
        adams.zero_grad()
    assert training.losses == pytest.approx(expected, rel=2e-3)
    assert expected[-1] < expected[0] - 0.1


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_that_goes_on_from_a_checkpoint_ends_as_if_it_had_not_stopped(train, arm):
    straight = train(arm, steps(20), "straight")
    straight.run()
    first = train(arm, steps(20, checkpoint_seconds=0.001), "parts")
    first.order.folder.mkdir()
    first._wanted = _stop_after(first, 9)
    first.run()
    first.save()
    second = train(arm, steps(20), "parts")
    assert second.resume()
    assert second.run() == ("completed", None)
    assert second.losses == straight.losses
    assert second.evaluate() == straight.evaluate()
    assert [path.name for path in (second.order.folder / "checkpoint").glob("step-*")] == [f"step-{second.first_tick}"]


def _stop_after(training: Training, ticks: int):
    def wanted():
        return 1 if training.state.ticks >= ticks else 0

    return wanted


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rank-0.npz", lambda data: data[:-100]),
        ("rank-0.npz", lambda data: data[:2000] + b"\0\1\2\3" + data[2004:]),
        ("rank-0.npz", lambda data: b"no archive"),
        ("latest.json", lambda data: b"{"),
    ],
    ids=["cut", "changed", "foreign", "note"],
)
def test_a_corrupt_checkpoint_is_refused_with_what_to_do(train, name, damage):
    training = train("e2e", steps(2))
    training.run()
    training.save()
    path = next(training.order.folder.rglob(name))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=r"the checkpoint is corrupt: .* --resume trains this arm from the beginning"):
        train("e2e", steps(2)).resume()


def test_a_checkpoint_of_another_model_is_refused(train):
    training = train("e2e", steps(2))
    training.run()
    training.save()
    with pytest.raises(UsageError, match="the checkpoint is corrupt"):
        train("local", steps(2)).resume()


@pytest.mark.parametrize("arm", ARMS)
def test_a_loss_that_is_no_number_stops_the_arm_and_is_dated(train, arm):
    training = train(arm, steps(300, learning_rate=1e-6))
    seen = training.trainer.load

    def poisoned(step: int) -> None:
        seen(step)
        if step == 12 + training.trainer.lag:
            training.trainer.stage.ends.head.data.fill_(math.nan)

    training.trainer.load = poisoned
    status, message = training.run()
    assert status == "diverged"
    assert message == "the training loss was no number from step 13 on, and the arm was stopped"
    assert training.steps < 300


def test_the_budget_is_of_training_and_not_of_evaluation_or_checkpoints(train, monkeypatch):
    """By a clock on which a step takes 1/64 s and an evaluation 5 s."""
    training = train("e2e", preset(train={"budget_seconds": 1.0, "eval_points": 2, "checkpoint_seconds": 0.3}))
    training.order.folder.mkdir()
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("moebench.arms.clock.time", SimpleNamespace(perf_counter=lambda: clock.now))
    step, evaluate = training.trainer.step, training.evaluate

    def slow_step(*given):
        clock.now += 1 / 64
        step(*given)

    def slow_evaluate():
        clock.now += 5
        return evaluate()

    training.trainer.step, training.evaluate = slow_step, slow_evaluate
    assert training.run() == ("completed", None)
    assert training.steps == 64
    assert training.state.elapsed_s == pytest.approx(1.0)
    assert training.tokens_per_s == pytest.approx(64 * 48)
    assert [point["elapsed_s"] >= due for point, due in zip(training.state.heldout, (1 / 3, 2 / 3), strict=True)]
    assert {said.phase for said in train.said} == {"training", "evaluation", "checkpoint"}


def test_a_stop_that_is_asked_for_ends_the_arm_with_what_it_has(train):
    training = train("local", steps(10_000))
    training.order.stop_file.write_text("interrupted (Ctrl-C)")
    assert training.run() == ("interrupted", "interrupted (Ctrl-C)")


@pytest.mark.parametrize(("step", "progress", "share"), [(0, 0.0, 0.5), (1, 0.0, 1.0), (9, 0.5, 0.55), (9, 1.0, 0.1)])
def test_the_rate_rises_over_the_warm_up_and_falls_over_the_budget(step, progress, share):
    assert share_of_peak(preset().train, step, progress) == pytest.approx(share)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_is_compiled_as_one_graph_and_learns_the_same(train, arm, monkeypatch):
    plain = train(arm, steps(3), "plain")
    plain.run()
    compiled, whole = torch.compile, []

    def traced(function, **keys):
        whole.append(function)
        return compiled(function, backend="aot_eager", fullgraph=True, **keys)

    monkeypatch.setattr(torch, "compile", traced)
    again = train(arm, steps(3), "compiled", mode="compiled")
    again.run()
    assert whole
    assert again.losses == pytest.approx(plain.losses, rel=1e-4)
