"""The report: models with the key names of the published GB300 report, which are also its JSON Schema.

A report is a superset of the published format. Keys that moebench does not know are kept, absent keys stay
absent, and a model is written with its keys in the order in which they came.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from moebench.inert import quoted
from moebench.rank.trace import Environment
from moebench.status import Reason, Status

SCHEMA_VERSION = 1

SHORTEST_MS, LONGEST_MS = 1e-9, 1e12
"""A picosecond and thirty years: no clock has measured an iteration outside of them, and rates of others overflow."""


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number")
    if not abs(value) <= sys.float_info.max:
        raise ValueError("must be finite")
    return value


def _time_ms(value: Any) -> Any:
    if not SHORTEST_MS <= _number(value) <= LONGEST_MS:
        raise ValueError(f"must be above 0, and a time: {SHORTEST_MS:g} to {LONGEST_MS:g} ms")
    return value


Number = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]
"""A finite number that stays as it was written: `1` is not turned into `1.0`."""

Milliseconds = Annotated[
    int | float,
    PlainValidator(_time_ms),
    WithJsonSchema({"type": "number", "minimum": SHORTEST_MS, "maximum": LONGEST_MS}),
]


class Open(BaseModel):
    """Keeps unknown keys, the order of all keys, and the difference between an absent key and null."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    _keys: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _note_order(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        model = handler(value)
        if isinstance(value, dict):
            model._keys = tuple(value)
        return model

    @model_serializer(mode="wrap")
    def _in_order(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        dumped = handler(self)
        return {key: dumped[key] for key in self._keys if key in dumped} | dumped


class Meta(Open):
    """What all cases of the report share. A case says where it differs, in `shape` or `measure`."""

    reportDate: str | None = Field(default=None, description="day on which the last case ended, UTC")
    hardware: str | None = Field(default=None, description="GPU or processor")
    cuda: str | None = None
    T: int = Field(ge=1, description="tokens per rank")
    D: int = Field(ge=1, description="hidden width")
    E: int = Field(ge=1, description="routed experts over all ranks")
    K: int = Field(ge=1, description="experts per token")
    F: int = Field(ge=1, description="FFN width of an expert")
    sharedExperts: int | None = None
    sharedPrecision: str | None = None
    windows: int | None = None
    iterationsPerWindow: int | None = None
    warmups: int | None = None
    acceptedExecutions: int | None = Field(default=None, description="entries of `cases`")
    rankTraces: int | None = Field(default=None, description="rank traces behind `cases`")
    matchedWorkloads: int | None = Field(default=None, description="entries of `pairs`")
    distPipelinePairs: int | None = Field(default=None, description="entries of `allPipelinePairs`")
    balancedRows: int | None = Field(default=None, description="T*K: rows of a rank at imbalance 1")
    profiles: dict[str, list[Number]] | None = Field(default=None, description="packing: imbalance of each layer")


class ShapeOverride(Open):
    """The axes in which a case differs from meta."""

    T: int | None = Field(default=None, ge=1)
    D: int | None = Field(default=None, ge=1)
    E: int | None = Field(default=None, ge=1)
    K: int | None = Field(default=None, ge=1)
    S: int | None = Field(default=None, ge=0)


class MeasureOverride(Open):
    """How a case was measured, where that differs from meta."""

    windows: int
    iterationsPerWindow: int
    warmups: int


class DistMoeCapacity(Open):
    """dist_moe, packing: activation slot and scratch of a rank, and what they made the run recompute."""

    slotBytes: int
    slotFactor: Number
    scratchBytes: int
    scratchFactor: Number
    hostScratchBytes: int
    slots: int
    savedRank0Bytes: int
    maxSavedRankBytes: int
    capacityRecomputeFlags: int = Field(description="rank-layers that recompute")
    inspectedRankLayers: int = Field(description="ep * layers")


class MokCapacity(Open):
    """mok, packing: rows kept, and rows replayed in backward."""

    requestedRowsPerLayer: int
    retainedRowsPerLayer: int
    minibatchRows: int
    effectiveFactor: Number
    rank0ScheduleRows: list[int]
    rank0ReplayRows: list[int]
    totalReplayRows: int
    rankLayerReplayCount: int
    sourcePolicyDerived: bool = Field(description="true: planned; false: counted from a run")


class CheckSummary(Open):
    """The worst of all comparisons of one tensor with the fp32 reference, over ranks and layers."""

    when: str = Field(description="before or after timing")
    tensor: str
    metric: str
    error: Number
    limit: Number
    rank: int
    layer: int | None
    comparisons: int


class Validation(Open):
    """Scope and result of the numerics check."""

    reference: str
    ranks: int
    checks: list[CheckSummary]


class Routing(Open):
    """The realised workload, counted by the ranks from the ids they were given."""

    sha256: str = Field(description="of the int32 little-endian ids [ep, T, K], layers in order")
    imbalance: list[Number] = Field(description="of each layer: rows of rank 0 over T*K")
    maxRowsReceived: int = Field(description="by one rank in one layer")
    minRowsReceived: int = Field(description="by one rank in one layer")
    remoteRowsSent: int = Field(description="all ranks and layers, one dispatch")


class PairedWindows(Open):
    """How a case's windows alternated with those of the cases of its group: two in each block, in mirror image."""

    group: str = Field(description="cases with the same group were timed together, and can be compared block by block")
    blocks: int = Field(ge=1, le=500, description="windows of `windowMS` belong to them two by two")
    alternated: str = Field(description="windows; or executions, where the cases did not fit in memory together")
    aaMS: list[Milliseconds] | None = Field(
        default=None, description="slowest rank, of each window of the same case once more: the A/A pair of the group"
    )


class Comparison(Open):
    """A case against another one of its group, from differences of their blocks; `fasterBy` above 1: it is faster."""

    case: str
    baseline: str
    fasterBy: Number = Field(description="baseline ms / case ms, Hodges-Lehmann estimate")
    low: Number = Field(description="of the exact confidence interval (signed rank)")
    high: Number
    level: Number = Field(description="of the interval")
    pValue: Number = Field(description="exact, two-sided, that they take the same time")
    adjustedPValue: Number | None = Field(description="by Holm, over all comparisons of the report")
    blocks: int
    verdict: str = Field(description="of the case: faster, slower, same, undecided, too few samples")


class Floor(Open):
    """The A/A pair of a group: a case against itself, as if it were two."""

    group: str
    case: str
    ratio: Number
    low: Number
    high: Number
    level: Number
    blocks: int
    effect: Number | None = Field(description="about the smallest that can be shown; null below 6 blocks")
    biased: bool | None = Field(description="a difference was seen where there is none")


class CaseRow(Open):
    """One accepted case. Rates are per GPU (per rank)."""

    id: str = Field(min_length=1)
    backend: str
    mode: str
    ep: int = Field(ge=1)
    precision: str
    pipeline: str
    category: str
    F: int = Field(ge=1)
    imbalance: Number = Field(description="rows of rank 0 over T*K; 1.0 in packing")
    profile: str | None = Field(default=None, description="packing: letter of the profile")
    layers: int = Field(ge=1)
    iterationMS: Milliseconds = Field(description="slowest rank, mean over windows")
    forwardMS: Milliseconds | None = None
    backwardMS: Milliseconds | None = Field(default=None, description="null in inference")
    usefulTFPerGPU: Number | None = Field(default=None, description="useful FLOPs over iterationMS, 1e12 per second")
    meanTXGBps: Number | None = Field(default=None, description="measured, 1e9 bytes per second; null at ep 1")
    meanRXGBps: Number | None = None
    modeledHBMGBps: Number | None = Field(default=None, description="modeled bytes over iterationMS")
    peakAllocatedGiB: Number | None = Field(default=None, description="largest over ranks, 2**30 bytes")
    peakReservedBytes: int | None = Field(default=None, description="packing on GPUs")
    fastMath: bool | None = None
    sharedSchedule: str | None = None
    capacity: DistMoeCapacity | MokCapacity | dict[str, Any] | None = Field(default=None, description="packing only")

    injected: list[str] | None = Field(default=None, description="faults that struck on purpose: not a measurement")
    implementation: str | None = Field(default=None, description="portable or library")
    estimator: str | None = Field(default=None, description="what iterationMS means")
    emulated: bool | None = Field(default=None, description="mxfp8 arithmetic on dequantised operands")
    hostKnownSplits: bool | None = Field(default=None, description="split sizes were known to the host")
    cudaGraph: bool | None = Field(default=None, description="iterations were replays of CUDA graphs")
    l2Flush: bool | None = Field(default=None, description="the L2 cache was overwritten before each iteration")
    trafficSource: str | None = Field(
        default=None,
        description="nvlink (the GPUs' counters), transport (bytes handed to the collectives) or logical (modeled)",
    )
    memorySource: str | None = Field(default=None, description="allocator or rss")
    windowMS: list[Milliseconds] | None = Field(default=None, description="slowest rank, of each window")
    floorMS: list[Milliseconds] | None = Field(default=None, description="fastest rank, of each window")
    skewMS: list[Number] | None = Field(default=None, description="slowest less fastest rank, of each window")
    startSkewMS: list[Number] | None = Field(
        default=None, description="how much later the last rank began each window than the first, on one host"
    )
    spread: Number | None = Field(default=None, description="(max - min) / median of windowMS; null for one window")
    logicalTXBytes: Number | None = Field(default=None, description="by formula, mean over ranks, one iteration")
    replayTXBytes: Number | None = Field(default=None, description="counted, mean over ranks, one iteration")
    txBytesByKind: dict[str, Number] | None = Field(default=None, description="counted, mean over ranks, one iteration")
    validation: Validation | None = None
    routing: Routing | None = None
    shape: ShapeOverride | None = Field(default=None, description="axes that differ from meta")
    measure: MeasureOverride | None = Field(default=None, description="where it differs from meta")
    environment: Environment | None = Field(default=None, description="of rank 0")
    paired: PairedWindows | None = Field(default=None, description="of a paired sweep")
    unstable: list[str] | None = Field(default=None, description="windows that drift, fall into groups or lie apart")
    attempt: int | None = Field(default=None, description="number of the execution that counts")
    attempts: int | None = Field(default=None, description="executions that ended")
    stale: str | None = Field(default=None, description="what has changed since it was measured")


class Pair(Open):
    """The fastest dist_moe case and the mok case of one workload, by id."""

    dist: str
    mok: str
    allDistPipelines: list[str] = Field(default=[], description="all dist_moe cases of the workload")


class PipelinePair(Open):
    """Any dist_moe case and the mok case of one workload, by id."""

    dist: str
    mok: str


def _not_accepted(status: Status) -> Status:
    if status is Status.ACCEPTED:
        raise ValueError("an accepted case belongs into `cases`")
    return status


class RejectedCase(Open):
    """A planned case that is not in `cases`, and why."""

    id: str = Field(min_length=1)
    status: Annotated[Status, Field(strict=False), AfterValidator(_not_accepted)]
    reason: Annotated[Reason, Field(strict=False)] | None = None
    message: str | None = None
    attempts: int = Field(default=0, description="executions that ended")
    log: str | None = Field(default=None, description="last lines of the guilty rank's log")
    stale: str | None = Field(default=None, description="what has changed since it was tried")


class Report(Open):
    """Every planned case is either in `cases` or in `rejected`."""

    schemaVersion: int = Field(default=SCHEMA_VERSION, description="absent in the published report")
    meta: Meta
    cases: list[CaseRow]
    pairs: list[Pair] = []
    allPipelinePairs: list[PipelinePair] = []
    rejected: list[RejectedCase] = []
    comparisons: list[Comparison] = Field(default=[], description="of a paired sweep")
    floors: list[Floor] = Field(default=[], description="of a paired sweep: the A/A pair of each group")

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        seen: set[str] = set()
        for place, entries in (("cases", self.cases), ("rejected", self.rejected)):
            for entry in entries:
                if entry.id in seen:
                    raise ValueError(f"the id {quoted(entry.id)} is a duplicate: its second place is in `{place}`")
                seen.add(entry.id)
        return self
