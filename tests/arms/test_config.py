from pathlib import Path

import pytest
from tests.arms.small import as_toml, preset

from moebench.arms.config import blocks_of_rank, describe_local, load_config, load_preset, preset_names
from moebench.cases.matrix import matrix_names
from moebench.errors import UsageError

EPOCHS = Path(__file__).parent.parent / "perf" / "arms_epochs.toml"
WHOLE = as_toml(local={"final_sampled": 50})


def test_presets_are_the_published_configuration_and_a_tiny_one_and_no_matrix():
    assert preset_names() == ["l40s", "tiny"]
    assert "arms" not in matrix_names()
    published = load_preset("l40s")
    assert list(published.model.model_dump().items()) == [
        ("vocab", 151936), ("dim", 512), ("n_blocks", 16), ("n_heads", 8), ("seq", 512), ("mlp_mult", 4)
    ]  # fmt: skip
    assert (published.train.batch, published.train.budget_seconds) == (8, 3600)


def test_the_preset_that_repeats_its_text_decays_as_much_an_epoch_as_what_was_measured():
    measured = load_config(EPOCHS).train
    ours, steps = load_preset("l40s").train, {"measured": 68_874 / 1024, "l40s": 2.5e6 / 4096}
    an_epoch = ours.learning_rate * ours.weight_decay * steps["l40s"]
    assert an_epoch == pytest.approx(measured.learning_rate * measured.weight_decay * steps["measured"], rel=0.15)


def test_an_unknown_preset_is_told_the_known_ones():
    with pytest.raises(UsageError, match=r"--preset huge: unknown. Known presets: l40s, tiny"):
        load_preset("huge")


@pytest.mark.parametrize(
    ("line", "instead", "words"),
    [
        ("dim = 16", "dim = 18", "dim 18 must be n_heads 2 times an even number"),
        ("batch = 4", "batch = 0", "train.batch: .*greater than or equal to 1"),
        ("budget_seconds = 60.0", "budget_seconds = 0.0", "train.budget_seconds: .*greater than 0"),
        ("classes = 64", "classes = 301", "local classes 301 must not be above vocab 300"),
        ("final_frequent = 100", "final_frequent = 300", "final_frequent 300 must be below vocab 300"),
        ("classes = 64", "unit_blocks = 3", "n_blocks 4 must be a multiple of unit_blocks 3"),
        ("classes = 64", "colour = 1", "local.colour: Extra inputs"),
        ("[train]", "[train", "not a TOML file"),
    ],
)
def test_a_mistake_in_a_configuration_is_named(tmp_path, line, instead, words):
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)
    assert load_config(path).model.vocab == 300
    path.write_text(WHOLE.replace(line, instead))
    with pytest.raises(UsageError, match=words):
        load_config(path)


def test_blocks_are_shared_out_in_order_and_evenly_or_not_at_all():
    assert [blocks_of_rank(preset(), rank, 2) for rank in range(2)] == [range(2), range(2, 4)]
    with pytest.raises(UsageError, match=r"--ranks 3: 4 blocks in units of 1 cannot be split evenly .* divisor of 4"):
        blocks_of_rank(preset(), 0, 3)
    with pytest.raises(UsageError, match="divisor of 2"):
        blocks_of_rank(preset(local={"unit_blocks": 2}), 0, 4)


def test_the_local_objective_is_stated_with_its_sizes():
    said = str(describe_local(preset(local={"final_sampled": 50}))["description"])
    assert "over 64 classes" in said
    assert "50 others sampled anew each step" in said
    assert "each group of 2 consecutive blocks" in str(describe_local(preset(local={"unit_blocks": 2}))["description"])
