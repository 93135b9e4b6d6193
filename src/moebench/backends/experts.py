"""The expert MLP of one layer on rows sorted by expert, forward and backward, in one precision.

Legend: B rows of a buffer (rows of experts, one expert after the other, perhaps padded), e experts of the rank,
G = 2F gate and up. `ends_e` is as in `gemm`. Rounding as on the GPU: FP32 accumulation, BF16 after every product,
SwiGLU in FP32.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from moebench.backends import gemm


class Experts(ABC):
    """The products of an expert MLP. Between `up` and `down` stands SwiGLU."""

    def encode(self, x_TD: Tensor) -> Tensor:
        """Token rows as they travel in a dispatch, [T, ...]."""
        return x_TD

    @abstractmethod
    def up(self, x_B: Tensor, ends_e: Tensor) -> Tensor:
        """Gate and up, [B, G], of rows as `encode` made them."""

    @abstractmethod
    def down(self, h_BF: Tensor, ends_e: Tensor) -> Tensor:
        """Output rows, [B, D]."""

    @abstractmethod
    def down_dgrad(self, dout_BD: Tensor, ends_e: Tensor) -> Tensor:
        """Gradient of h, [B, F]."""

    @abstractmethod
    def down_wgrad(self, dout_BD: Tensor, h_BF: Tensor, ends_e: Tensor) -> Tensor:
        """Gradient of w2, [e, D, F]."""

    @abstractmethod
    def up_dgrad(self, dh13_BG: Tensor, ends_e: Tensor) -> Tensor:
        """Gradient of x, [B, D]."""

    @abstractmethod
    def up_wgrad(self, dh13_BG: Tensor, x_BD: Tensor, ends_e: Tensor) -> Tensor:
        """Gradient of w13, [e, G, D]."""


class Bf16Experts(Experts):
    def __init__(self, w13_eGD: Tensor, w2_eDF: Tensor) -> None:
        self._w13_eGD, self._w2_eDF = w13_eGD.detach(), w2_eDF.detach()

    def up(self, x_B: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_linear(x_B, self._w13_eGD, ends_e)

    def down(self, h_BF: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_linear(h_BF, self._w2_eDF, ends_e)

    def down_dgrad(self, dout_BD: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_matmul(dout_BD, self._w2_eDF, ends_e)

    def down_wgrad(self, dout_BD: Tensor, h_BF: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_outer(dout_BD, h_BF, ends_e)

    def up_dgrad(self, dh13_BG: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_matmul(dh13_BG, self._w13_eGD, ends_e)

    def up_wgrad(self, dh13_BG: Tensor, x_BD: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_outer(dh13_BG, x_BD, ends_e)
