"""The real dist_moe: an adapter to the library."""

from typing import ClassVar

from torch import Tensor

from moebench.backends.protocol import Backend
from moebench.cases.case import PIPELINES


class DistMoeLibrary(Backend):
    name = "dist_moe"
    implementation: ClassVar[str] = "library"
    pipelines = PIPELINES["dist_moe"]

    @classmethod
    def missing(cls) -> str | None:
        return "this version of moebench has no adapter for the real library"

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        raise NotImplementedError
