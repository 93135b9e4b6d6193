"""What a backend is: it supports a case or says why not, prepares, offers one layer, reports capacity, closes.

`rank/` owns everything else (chaining of layers, autograd, events, counters, checks), so no backend can time
itself. Legend of tensor names: T tokens of a rank, D hidden, E experts in total, e experts of a rank, K experts
per token, F FFN width, G = 2F gate and up, R rows on a rank, P ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from moebench.cases.case import Case, Pipeline, Precision
from moebench.cases.routing import Ids
from moebench.rank.exchange import Exchange


@dataclass(frozen=True)
class LayerWeights:
    """BF16 weights of one layer on one rank. Gate is the first half of G, up the last: h = silu(gate) * up."""

    w13_eGD: Tensor
    w2_eDF: Tensor
    shared13_GD: Tensor
    """[2*S*F, D]: all shared experts as one SwiGLU of width S*F."""
    shared2_DF: Tensor

    def parameters(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.w13_eGD, self.w2_eDF, self.shared13_GD, self.shared2_DF


@dataclass(frozen=True)
class Setup:
    """What a backend is given to prepare one case on one rank."""

    case: Case
    rank: int
    device: torch.device
    exchange: Exchange
    weights: list[LayerWeights]
    ids_PTK: list[Ids]
    """Routing of each layer as the host knows it. Only for memory planning and split sizes (`host_known_splits`):
    sorts, counts and schedules are made from the ids that `layer` is given."""
    stages: "Stages"


@dataclass
class Stages:
    """Order of a layer's stages, recorded only while `recording`; tests prove overlap by it, never by time."""

    recording: bool = False
    names: list[str] = field(default_factory=list)

    def mark(self, name: str) -> None:
        if self.recording:
            self.names.append(name)


class Backend(ABC):
    """One expert-parallel implementation. The constructor prepares: buffers, quantised weights, split sizes."""

    name: ClassVar[str]
    """Stands in case ids: letters, digits and _."""
    pipelines: ClassVar[Mapping[Precision, tuple[Pipeline, ...]]] = {Precision.BF16: (Pipeline.EAGER,)}
    implementation: ClassVar[str] = "portable"
    host_known_splits: ClassVar[bool] = False
    """True if split sizes of all-to-alls come from `Setup.ids_PTK`, so the layer never waits for the device."""
    shared_schedule: ClassVar[str] = "concurrent"
    fast_math: ClassVar[bool] = False
    """True if mxfp8 kernels approximate the sigmoid of SwiGLU; other precisions have no such choice."""
    emulated: ClassVar[bool] = True
    """True if block-scaled products are computed on dequantised operands, as all portable backends do."""

    @classmethod
    def missing(cls) -> str | None:
        """What this machine lacks to run any case of this backend, exactly, or None."""
        return None

    @classmethod
    def unsupported(cls, case: Case) -> str | None:
        """Why this backend cannot do the case here, or None. Called on every rank before anything is allocated."""
        return None

    @classmethod
    def why_no_cuda_graph(cls, case: Case) -> str | None:
        """Why a layer of this case cannot be captured in a CUDA graph, or None if it can.

        It can if `layer`, and its backward, read nothing on the host and never wait for the device.
        """
        return f"the backend {cls.name} does not say that its layer can be captured in a CUDA graph"

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        """Layer l: y_TD = shared(x) + sum over k of score * expert(x), bf16; differentiable in training.

        x_TD bf16, ids_TK int64 global expert ids, distinct in a token, scores_TK fp32, all on the device.
        """

    def deliver_gradients(self) -> None:
        """Put weight gradients that the backend has in a layout of its own into the `.grad` of LayerWeights.

        Called once after an untimed backward, before they are checked: no user of the backend makes that copy.
        """
        return

    def capacity(self) -> dict[str, Any] | None:
        """What the run did with its memory policy, in the report's keys; None where the backend has none."""
        return None

    def note(self) -> Any:
        """What ran, beyond the class, as a dataclass for the trace's environment: versions, limits, buffers."""
        return None

    def close(self) -> None:
        """Release what the constructor took. Called once, also after a failure."""
        return
