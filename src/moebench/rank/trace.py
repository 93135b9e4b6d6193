"""What one rank recorded in one execution: the file traces/<case id>/<attempt>/rank-<N>.json."""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moebench.cases.case import Case
from moebench.status import Reason, Status

SCHEMA_VERSION = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null")


class Window(_Model):
    """One timed window. The three events of an iteration are in the same iteration: start, after forward, end."""

    forward_ms: list[float] = Field(description="per iteration: start to end of forward")
    backward_ms: list[float] | None = Field(description="per iteration: end of forward to end; none in inference")
    iteration_ms: list[float] = Field(description="per iteration: start to end")
    begun_ns: int | None = Field(
        default=None, description="monotonic clock of the host when the first iteration was begun; compare on one host"
    )
    seconds: float = Field(description="inside the iterations of the window, altogether")
    tx_bytes: int = Field(description="bytes sent to other ranks in the window")
    rx_bytes: int = Field(description="bytes received from other ranks in the window")


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
        return self.error is not None and self.error <= self.limit


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
    phase: str = Field(description="the phase in which it ended: support, set-up, check, timing, recheck, done")
    implementation: str = Field(description="portable or library")
    estimator: str = Field(default="slowest-rank-window-mean", description="what iteration times mean")
    realised: Realised | None = None
    windows: list[Window] = []
    traffic_source: str | None = Field(default=None, description="transport, nvlink, logical")
    tx_bytes_by_kind: dict[str, int] = Field(default={}, description="one iteration: dispatch, combine, metadata, ...")
    memory_source: str | None = Field(default=None, description="allocator or rss; none where refused")
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    checks: list[Check] = []
    capacity: dict[str, Any] | None = None
    fast_math: bool = False
    shared_schedule: str = "concurrent"
    emulated: bool = Field(default=False, description="mxfp8 arithmetic on dequantised operands")
    host_known_splits: bool = Field(default=False, description="split sizes came from the host, not the device")
    environment: dict[str, Any] = {}


def trace_path(run: Path, case_id: str, attempt: int, rank: int) -> Path:
    return run / "traces" / case_id / str(attempt) / f"rank-{rank}.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a file that readers see whole or not at all: temporary file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
