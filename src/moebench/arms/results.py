"""What the processes of an arms run tell each other: the order to one arm, its progress and its result. No torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from moebench.arms.config import Arm, Mode, Preset
from moebench.rank.trace import Environment
from moebench.reduce.schema import Number, Open

CURVE_POINTS = 40
"""Of a loss curve, about: it has every max(1, steps // 40)-th step."""

ArmStatus = Literal["completed", "interrupted", "diverged"]


class ArmOrder(BaseModel):
    """One arm, trained once, in a fresh process (or one for each rank). Everything it writes is in `folder`."""

    model_config = ConfigDict(extra="forbid")
    arm: Arm
    preset: Preset
    ranks: int
    device: str
    mode: Mode
    text: Path
    folder: Path
    stop_file: Path

    @property
    def result_path(self) -> Path:
        return self.folder / "result.json"

    @property
    def error_path(self) -> Path:
        return self.folder / "error.json"

    @property
    def progress_path(self) -> Path:
        return self.folder / "progress.jsonl"


class Said(BaseModel):
    """A line of progress. Times in seconds."""

    phase: Literal["starting", "warm-up", "training", "checkpoint", "evaluation"]
    step: int = 0
    elapsed_s: float = 0.0
    left_s: float = 0.0
    tokens_per_s: float | None = None
    loss: float | None = None


class Failure(BaseModel):
    """Why a process could not go on, and moebench's exit status for it."""

    message: str
    exit_code: int


class HeldoutPoint(Open):
    """A held-out loss on the way."""

    elapsed_s: Number
    steps: int
    loss: Number


class SeamTraffic(Open):
    """Bytes of one step over the seam between two neighbouring ranks, both directions together."""

    ranks: Annotated[list[int], Field(min_length=2, max_length=2)]
    measured_bytes_per_step: Number
    modeled_bytes_per_step: int


class ArmResult(Open):
    """One arm of the report: the published keys, then ours."""

    arm: Arm
    steps: int = Field(description="batches that have been through the last block")
    tokens: int = Field(description="steps * batch * seq")
    elapsed_s: Number = Field(description="of training: compilation, warm-up, evaluation and checkpoints are outside")
    tokens_per_s: Number
    final_loss: Number | None = Field(description="held-out text, whole vocabulary, nats a token; null if it diverged")
    final_ppl: Number | None = Field(description="exp(final_loss)")
    peak_vram_bytes: int | None = Field(description="largest of any rank; on a CPU the growth of resident memory")
    loss_curve: list[Number] = Field(description="training loss at every max(1, steps // 40)-th step, own batches")

    status: ArmStatus | None = None
    message: str | None = None
    mode: Mode | None = None
    ranks: int | None = None
    memory_source: str | None = Field(default=None, description="allocator or rss")
    warmup_s: Number | None = Field(
        default=None, description="compilation, graph capture and warm-up, before the clock"
    )
    loader_s: Number | None = Field(default=None, description="of the host's time in elapsed_s, spent on batches")
    lag_steps: int | None = Field(
        default=None, description="steps until the first batch had been through the last block"
    )
    heldout_curve: list[HeldoutPoint] | None = None
    seams: list[SeamTraffic] | None = Field(default=None, description="between ranks")
    resumed: bool | None = Field(default=None, description="went on from a checkpoint")
    started: str | None = Field(default=None, description="UTC")
    environment: Environment | None = None
