"""What one rank recorded in one execution: the file traces/<case id>/<attempt>/rank-<N>.json."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from moebench.cases.case import Case, Measure
from moebench.status import Reason, Status

SCHEMA_VERSION = 1

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Bytes or rows, within what a 64-bit counter holds."""


def _usable(environment: dict[str, Any]) -> dict[str, Any]:
    for key in ("device", "hardware", "host", "cuda"):
        if not isinstance(environment.get(key, ""), str | None):
            raise ValueError(f"`{key}` must be a text or null")
    if type(environment.get("gpu_shared_by", 1)) is not int:
        raise ValueError("`gpu_shared_by` must be a whole number")
    return environment


Environment = Annotated[dict[str, Any], AfterValidator(_usable)]
"""What a rank ran on. Any keys; those that decide what may be compared have a known type."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Window(_Model):
    """One timed window. The three events of an iteration are in the same iteration: start, after forward, end."""

    forward_ms: list[float] = Field(description="per iteration: start to end of forward")
    backward_ms: list[float] | None = Field(description="per iteration: end of forward to end; none in inference")
    iteration_ms: list[float] = Field(description="per iteration: start to end")
    begun_ns: Count | None = Field(
        default=None, description="monotonic clock of the host when the first iteration was begun; compare on one host"
    )
    ended_ns: Count | None = Field(default=None, description="the same clock when the last iteration had ended")
    seconds: float = Field(description="inside the iterations of the window, altogether")
    tx_bytes: Count = Field(description="bytes handed to the collectives for other ranks in the window")
    rx_bytes: Count = Field(description="bytes got from other ranks by the collectives in the window")
    nvlink_tx_bytes: Count | None = Field(default=None, description="sent over all NVLinks of the GPU, by its counters")
    nvlink_rx_bytes: Count | None = Field(default=None, description="received over all NVLinks, by the GPU's counters")

    def sent_bytes(self, source: str | None) -> int:
        """To other ranks, by this traffic source."""
        return (self.nvlink_tx_bytes or 0) if source == "nvlink" else self.tx_bytes

    def received_bytes(self, source: str | None) -> int:
        """From other ranks, by this traffic source."""
        return (self.nvlink_rx_bytes or 0) if source == "nvlink" else self.rx_bytes


class Check(_Model):
    """One comparison with the fp32 reference on this rank."""

    when: str = Field(description="before or after timing")
    tensor: str = Field(description="y, dx, dscores, ...")
    layer: int | None
    metric: str = Field(description="relative_l2, or worst_token: the largest relative L2 of a token")
    error: float | None = Field(description="none where it was not finite")
    limit: float

    @property
    def passed(self) -> bool:
        return self.error is not None and 0 <= self.error <= self.limit < math.inf

    def in_words(self) -> str:
        layer = "" if self.layer is None else f" of layer {self.layer}"
        error = "not finite" if self.error is None else f"{self.error:.4g}"
        return f"{self.metric} of {self.tensor}{layer} is {error}, limit {self.limit:g} ({self.when} timing)"


class Alternation(_Model):
    """How a case's windows alternated with those of other cases of its workload: two in each block, in mirror image,
    so that what changes steadily hits all of them alike."""

    group: str = Field(description="the same for all cases whose windows alternated with each other")
    blocks: int
    together: bool = Field(description="all were set up at once; else each was set up anew for each of its windows")


class Realised(_Model):
    """The workload as this rank saw it, counted from the ids it was given."""

    world_size: int
    routing_sha256: str
    imbalance: list[float] = Field(description="of each layer: rows of rank 0 over T*K")
    rows_received: list[int] = Field(description="by this rank, of each layer")
    remote_rows_sent: list[int] = Field(description="by this rank to other ranks, of each layer")


class RankTrace(_Model):
    """Everything one rank knows of one execution."""

    schema_version: int = SCHEMA_VERSION
    case: Case
    case_id: str
    attempt: int
    rank: int
    status: Status = Field(description="accepted means measured; the reducer decides over all ranks")
    reason: Reason | None = None
    message: str | None = None
    stack: str | None = Field(default=None, description="of the exception that ended it: its innermost frames")
    phase: str = Field(
        description="the phase in which it ended: support, set-up, check, timing, capture, recheck, done"
    )
    injected: list[str] = Field(default=[], description="faults that struck a rank of this case on purpose")
    implementation: str = Field(description="portable or library")
    estimator: str = Field(default="slowest-rank-window-mean", description="what iteration times mean")
    realised: Realised | None = None
    warmups: int | None = Field(default=None, description="iterations before the first window")
    settled: bool | None = Field(default=None, description="the last of them showed no drift, on any rank")
    windows: list[Window] = []
    alternation: Alternation | None = None
    aa_windows: list[Window] = Field(default=[], description="the same case once more, as if it were another one")
    cuda_graph: bool = Field(default=False, description="timed iterations were replays of CUDA graphs")
    traffic_source: str | None = Field(default=None, description="transport, nvlink, logical")
    tx_bytes_by_kind: dict[str, Count] = Field(
        default={}, description="one iteration: dispatch, combine, metadata, ..."
    )
    memory_source: str | None = Field(default=None, description="allocator or rss; none where refused")
    peak_allocated_bytes: Count | None = None
    peak_reserved_bytes: Count | None = None
    checks: list[Check] = []
    capacity: dict[str, Any] | None = None
    fast_math: bool = False
    shared_schedule: str = "concurrent"
    emulated: bool = Field(default=False, description="mxfp8 arithmetic on dequantised operands")
    host_known_splits: bool = Field(default=False, description="split sizes came from the host, not the device")
    environment: Environment = {}


def estimator(measure: Measure, *, on_gpu: bool) -> str:
    """What iteration times mean: the slowest rank's mean of a window, and what was done to each iteration on a GPU.

    Cases with different estimators are not paired.
    """
    name = "slowest-rank-window-mean"
    if measure.paired:
        name += ", windows alternating"
    if on_gpu and measure.cuda_graph:
        name += ", CUDA graph replayed"
    if on_gpu and measure.l2_flush:
        name += ", L2 flushed"
    return name


def trace_path(run: Path, case_id: str, attempt: int, rank: int) -> Path:
    return run / "traces" / case_id / str(attempt) / f"rank-{rank}.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a file that readers see whole or not at all, also after a power cut: temporary file, fsync, rename.

    Raises OSError, and then leaves no file behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
