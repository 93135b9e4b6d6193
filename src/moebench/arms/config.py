"""What an arms run is: model, training, local objective and data, read from TOML. Needs no torch."""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.reading import MIB, first_problem, read_user_file

Count = Annotated[int, Field(ge=1, le=2**31)]
Share = Annotated[float, Field(gt=0, le=1)]

Arm = Literal["e2e", "local"]
ARMS: tuple[Arm, ...] = ("e2e", "local")

ObjectiveName = Literal["own_head", "shared_head", "contrastive", "regression"]
Mode = Literal["eager", "compiled", "graphed"]
"""`graphed`: compiled, captured as one CUDA graph and replayed."""

OBJECTIVES: dict[ObjectiveName, str] = {
    "own_head": "softmax of a head of the unit's own over {classes} classes: the more frequent half of them are single "
    "tokens, the others are shared by all rarer tokens in turn; this head starts as the model's initial head does, "
    "serves training alone and is no part of the model",
    "shared_head": "softmax of the last unit's head, detached, over the {classes} most frequent tokens; positions with "
    "other targets do not count",
    "contrastive": "softmax of the target's row in the last unit's head, detached, against the rows of 1024 other "
    "targets of the batch",
    "regression": "one minus the cosine of the output and the target's row in the last unit's head, detached",
}
NEED_HEAD: tuple[ObjectiveName, ...] = ("shared_head", "contrastive", "regression")
"""They read the last unit's head, which only the last rank of a pipeline has."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelConfig(_Model):
    """A pre-norm GPT with rotary positions and an untied head; the names are those of the published report."""

    vocab: Count
    dim: Count
    n_blocks: Count
    n_heads: Count
    seq: Count
    mlp_mult: Count

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> Self:
        if self.dim % self.n_heads or self.dim // self.n_heads % 2:
            raise ValueError(f"dim {self.dim} must be n_heads {self.n_heads} times an even number: rotary pairs")
        return self


class TrainConfig(_Model):
    """Shared by both arms."""

    batch: Count = Field(description="sequences a step")
    budget_seconds: float = Field(gt=0, le=1e7, description="of training, an arm; compilation and warm-up outside")
    learning_rate: float = Field(gt=0, le=1, description="peak")
    warmup_steps: int = Field(ge=0, description="the rate rises linearly from 0 ...")
    final_share: float = Field(ge=0, le=1, description="... and falls linearly with the budget to this share of it")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: float = Field(default=0.1, ge=0, description="of matrices; none of norms and biases")
    seed: int = Field(default=0, ge=0, lt=2**31)
    max_steps: Count | None = Field(default=None, description="end there even if budget is left")
    checkpoint_seconds: float = Field(default=60, gt=0)
    eval_tokens: Count = Field(default=2**18, description="held-out tokens for the loss, at most")
    eval_points: int = Field(default=0, ge=0, description="held-out losses on the way, outside the budget")


class LocalConfig(_Model):
    """The local arm's objective. `units` are groups of consecutive blocks trained on one loss; 1 block by default."""

    objective: ObjectiveName = "own_head"
    classes: int = Field(default=2048, ge=2, description="of tokens, that a block tells apart")
    positions: Share = Field(default=1.0, description="share of positions that a block's loss looks at")
    unit_blocks: Count = Field(default=1, description="blocks in a unit; above 1 gradients cross the seams inside")
    units_at_once: Count | None = Field(default=None, description="units computed as one batch; none: all of a rank")
    final_frequent: int = Field(default=8192, ge=0, description="last block: frequent tokens that every step sees")
    final_sampled: int = Field(default=8192, ge=0, description="last block: sampled others; 0: all of the vocabulary")


class DataConfig(_Model):
    """The embedded default corpus is the standard library of the running Python."""

    corpus_bytes: Count = Field(default=2**31, description="of text taken, at most; files in order of their hash")
    heldout_share: float = Field(default=0.04, gt=0, lt=1, description="of files, by their hash")


class Preset(_Model):
    """One complete arms run."""

    model: ModelConfig
    train: TrainConfig
    local: LocalConfig = LocalConfig()
    data: DataConfig = DataConfig()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.model.n_blocks % self.local.unit_blocks:
            raise ValueError(
                f"n_blocks {self.model.n_blocks} must be a multiple of unit_blocks {self.local.unit_blocks}"
            )
        vocab = self.model.vocab
        if self.local.classes > vocab:
            raise ValueError(f"local classes {self.local.classes} must not be above vocab {vocab}")
        if self.local.final_sampled and self.local.final_frequent >= vocab:
            raise ValueError(f"local final_frequent {self.local.final_frequent} must be below vocab {vocab}")
        return self

    @property
    def units(self) -> int:
        return self.model.n_blocks // self.local.unit_blocks


def blocks_of_rank(preset: Preset, rank: int, ranks: int) -> range:
    """The consecutive blocks of a pipeline stage. Raises UsageError where units cannot be shared out evenly."""
    if preset.units % ranks:
        raise UsageError(
            f"--ranks {ranks}: {preset.model.n_blocks} blocks in units of {preset.local.unit_blocks} cannot be split "
            f"evenly over {ranks} ranks. Give a divisor of {preset.units}."
        )
    each = preset.model.n_blocks // ranks
    return range(rank * each, (rank + 1) * each)


def preset_names() -> list[str]:
    """Names of the presets that come with moebench."""
    return list(_shipped())


def load_preset(name: str) -> Preset:
    """A preset by name. Raises UsageError naming the known ones."""
    shipped = _shipped()
    if name not in shipped:
        raise UsageError(f"--preset {quoted(name)}: unknown. Known presets: {', '.join(shipped)}.")
    return Preset.model_validate(shipped[name])


def load_config(path: Path) -> Preset:
    """A preset from a TOML file of its own, with the tables model, train, local and data. Raises UsageError naming the
    file, the key and what is wrong."""
    try:
        raw = tomllib.loads(read_user_file(path, MIB, "an arms configuration, a TOML file").decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file that can be read: {quoted(error)}.") from error
    try:
        return Preset.model_validate(raw)
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error)}. cases/arms.toml has examples of every table.") from error


def _shipped() -> dict[str, object]:
    text = (Path(str(files("moebench") / "matrices")) / "arms.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def describe_local(preset: Preset) -> dict[str, object]:
    """The local objective as the report states it."""
    local, size = preset.local, preset.local.unit_blocks
    unit = "block" if size == 1 else f"group of {size} consecutive blocks"
    last = "softmax of the model's head over the whole vocabulary"
    if local.final_sampled:
        last = (
            f"softmax of the model's head over the {local.final_frequent} most frequent tokens, the target and "
            f"{local.final_sampled} others sampled anew each step, weighted so that the sum over the vocabulary is "
            "estimated without bias"
        )
    text = (
        f"each {unit} predicts the next token from its own output: {OBJECTIVES[local.objective]}. "
        f"The last one: {last}. "
        "It alone trains the model's norm and head, and the first one alone the embedding. "
        f"No gradient crosses a seam between {unit}s."
    ).replace("{classes}", str(local.classes))
    return {"name": local.objective, "description": text, **local.model_dump()}
