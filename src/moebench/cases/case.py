"""A case is one row of the report: a workload, and who does it. Its id says all of it."""

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moebench.cases.shape import Shape


class Mode(StrEnum):
    INFERENCE = "inference"
    TRAINING = "training"


class Category(StrEnum):
    SINGLE_LAYER = "single_layer"
    WIDTH = "width"
    PACKING = "packing"


class Precision(StrEnum):
    BF16 = "bf16"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"
    """Inference by the real dist_moe; nothing else here computes it."""


class Implementation(StrEnum):
    PORTABLE = "portable"
    """Our own re-creation of a backend's execution strategy in PyTorch."""
    LIBRARY = "library"
    """The real library."""


class Pipeline(StrEnum):
    EAGER = "eager"
    NATIVE = "native"
    STANDARD = "standard"
    STAGED = "staged"
    MEGA = "mega"


PIPELINES: dict[str, dict[Precision, tuple[Pipeline, ...]]] = {
    "torch": {Precision.BF16: (Pipeline.EAGER,), Precision.MXFP8: (Pipeline.EAGER,)},
    "dist_moe": {
        Precision.BF16: (Pipeline.STANDARD,),
        Precision.MXFP8: (Pipeline.STAGED, Pipeline.MEGA),
        Precision.NVFP4: (Pipeline.STAGED, Pipeline.MEGA),
    },
    "mok": {Precision.BF16: (Pipeline.NATIVE,), Precision.MXFP8: (Pipeline.NATIVE,)},
}
"""The pipelines of each backend that a matrix can name without importing it."""

CLASS_PATH = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
"""How a class is named from outside: package.module:Class."""

ShapeAxis = Literal["T", "D", "E", "K"]

SHAPE_AXES: tuple[ShapeAxis, ...] = ("T", "D", "E", "K")
"""Axes that an id names only where they differ from the matrix's own shape, in this order."""

ProfileName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]{0,39}$")]
"""Part of case ids, and so of folder names."""

Imbalance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Rows of rank 0 over T*K."""

Profile = Annotated[list[Imbalance], Field(min_length=1, max_length=1000)]
"""The imbalance of each layer."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Measure(_Frozen):
    """How a case is measured, and what its numbers must satisfy to be accepted."""

    windows: int = Field(default=5, ge=1, le=1000, description="timed windows")
    iterations: int = Field(default=30, ge=1, le=100_000, description="iterations in a window")
    warmups: int = Field(default=10, ge=0, le=100_000, description="untimed iterations before the first window")
    max_warmups: int = Field(
        default=100, ge=0, le=100_000, description="more warm-ups, until iteration times no longer drift, up to this"
    )
    warmup_seconds: float = Field(
        default=0.0, ge=0, le=600, description="more warm-ups, until they took so long: a cold GPU runs faster"
    )
    max_window_spread: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="largest (max - min) / median over window times; absent: no gate",
    )
    y_relative_l2: float | None = Field(
        default=None, gt=0, le=1, description="limit of y against the reference; absent: that of the precision"
    )
    y_worst_token: float | None = Field(default=None, gt=0, le=1, description="the same of its worst token")
    gradient_relative_l2: float | None = Field(
        default=None, gt=0, le=1, description="the same of gradients, times the root of the layers"
    )
    throttle_bits: int = Field(
        default=0xE8,
        ge=0,
        lt=2**32,
        description="NVML clock event bits that reject: slowed by hardware or heat, not by the power cap",
    )
    paired: bool = Field(
        default=False, description="windows alternate with those of the workload's other cases, two in each block"
    )
    l2_flush: bool = Field(default=False, description="on GPUs: overwrite the L2 cache before each iteration, untimed")
    cuda_graph: bool = Field(default=False, description="on GPUs: replay iterations as CUDA graphs")
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="seed of routing, inputs and weights")

    @model_validator(mode="after")
    def _blocks_are_whole(self) -> Self:
        if self.paired and self.windows % 2:
            raise ValueError(f"paired blocks have two windows of each case: windows must be even, not {self.windows}")
        return self


class Capacity(_Frozen):
    """Memory policies of the backends, in units of T*K rows where they are factors."""

    slot_factor: float = Field(default=8.0, ge=0, le=1e6, description="dist_moe: optional bytes of the activation slot")
    scratch_factor: float = Field(default=8.0, gt=0, le=1e6, description="dist_moe: receive rows that scratch holds")
    chunks: int = Field(default=4, ge=1, le=2**16, description="dist_moe mega: token chunks in flight")
    pad_rows: int = Field(default=256, ge=1, le=2**24, description="mok: rows of an expert are padded up to this")
    minibatch_rows: int = Field(default=4096, ge=1, le=2**40, description="mok: granule of overlap")
    macrobatch_rows: int = Field(default=131072, ge=1, le=2**40, description="mok: retained rows of a layer")
    retained_factor: float | None = Field(
        default=None, gt=0, le=1e6, description="mok: retained rows as a factor, in place of macrobatch_rows"
    )


class Case(_Frozen):
    """One row of the report, with everything a rank needs to do it."""

    backend: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,79}$")
    backend_path: str | None = Field(
        default=None, pattern=CLASS_PATH, description="package.module:Class; none: a registered name"
    )
    implementation: Implementation = Implementation.PORTABLE
    mode: Mode
    ep: int = Field(ge=1, description="expert-parallel ranks")
    precision: Precision
    pipeline: Pipeline
    category: Category
    shape: Shape
    imbalance: Imbalance = Field(description="rows of rank 0 over T*K; 1.0 in packing")
    profile: ProfileName | None = Field(default=None, description="packing: letter of the profile")
    layer_imbalances: tuple[Imbalance, ...] = Field(
        min_length=1, max_length=1000, description="imbalance of each layer"
    )
    overridden: tuple[ShapeAxis, ...] = Field(default=(), description="shape axes that differ from the matrix")
    measure: Measure = Measure()
    capacity: Capacity = Capacity()
    unsupported: str | None = Field(default=None, description="why no backend can do it, if so")

    @property
    def layers(self) -> int:
        return len(self.layer_imbalances)

    @property
    def training(self) -> bool:
        return self.mode is Mode.TRAINING

    @property
    def passes(self) -> int:
        """1 for inference; 3 for training (forward, and the two products of backward)."""
        return 3 if self.training else 1

    @property
    def experts_per_rank(self) -> int:
        return self.shape.E // self.ep

    @property
    def variant(self) -> str:
        return self.profile if self.profile is not None else f"i{self.imbalance:g}"

    @property
    def _tail(self) -> str:
        axes = "".join(f"-{axis}{getattr(self.shape, axis)}" for axis in self.overridden)
        return f"{self.category}-{self.variant}-F{self.shape.F}{axes}"

    @cached_property
    def id(self) -> str:
        return f"{self.backend}-{self.work_id}"

    @property
    def work_id(self) -> str:
        """The id without its backend: the sort key of a report."""
        return f"{self.mode}-ep{self.ep}-{self.precision}-{self.pipeline}-{self._tail}"

    @property
    def workload_id(self) -> str:
        """The work, whoever does it: cases that may be compared share it."""
        return f"{self.mode}-ep{self.ep}-{self.precision}-{self._tail}"


def alternating(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases in the groups whose windows alternate: those of one workload that are measured alike, and each case that
    is not measured in pairs alone. Groups and their cases keep the order given."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        work = (case.workload_id, case.shape, case.layer_imbalances, case.measure)
        groups.setdefault(work if case.measure.paired else (case.id,), []).append(case)
    return list(groups.values())


def report_order(case: Case) -> tuple[str, str]:
    """Sort key of cases in a report: id without backend as text (`ep16` before `ep8`), then the full id."""
    return case.work_id, case.id
