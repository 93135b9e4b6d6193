"""The expert MLP in MXFP8, emulated: both operands of every product are quantised in blocks of 32 along the summed
axis, and the product is that of their dequantised BF16 values with FP32 accumulation, as MX units would give it.

Weights are quantised when the object is made, outside the timed region; activations and gradients inside it.
Legend as in `experts`. Rows of a buffer must divide by 32 where weight gradients are asked for, and experts must
begin at multiples of 32, so that no block of rows belongs to two experts.
"""

from torch import Tensor

from moebench.backends import gemm
from moebench.backends.experts import Experts
from moebench.quant.mxfp8 import Recipe, dequantize, pack_rows, quantize, quantize_tiles, unpack_rows

ROW_BLOCK = 32
"""Rows of an expert's share of a buffer are padded to this in training."""


class Mxfp8Experts(Experts):
    """`tiles`: training weights have one scale for 32x32 elements, so forward and backward share one copy.
    `quantised_dispatch`: rows travel as E4M3 and scales, D + D/32 bytes each."""

    def __init__(
        self, w13_eGD: Tensor, w2_eDF: Tensor, recipe: Recipe, *, tiles: bool = False, quantised_dispatch: bool = False
    ) -> None:
        self._recipe, self._quantised_dispatch = recipe, quantised_dispatch
        self._hidden = w13_eGD.shape[2]
        w13_eGD, w2_eDF = w13_eGD.detach(), w2_eDF.detach()
        if tiles:
            self._w13_by_D = self._w13_by_G = dequantize(quantize_tiles(w13_eGD, recipe))
            self._w2_by_F = self._w2_by_D = dequantize(quantize_tiles(w2_eDF, recipe))
        else:
            self._w13_by_D, self._w13_by_G = self._rounded(w13_eGD, -1), self._rounded(w13_eGD, -2)
            self._w2_by_F, self._w2_by_D = self._rounded(w2_eDF, -1), self._rounded(w2_eDF, -2)

    def _rounded(self, x: Tensor, axis: int) -> Tensor:
        return dequantize(quantize(x, self._recipe, axis))

    def encode(self, x_TD: Tensor) -> Tensor:
        return pack_rows(quantize(x_TD, self._recipe)) if self._quantised_dispatch else x_TD

    def up(self, x_B: Tensor, ends_e: Tensor) -> Tensor:
        x_BD = dequantize(unpack_rows(x_B, self._hidden)) if self._quantised_dispatch else self._rounded(x_B, -1)
        return gemm.grouped_linear(x_BD, self._w13_by_D, ends_e)

    def down(self, h_BF: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_linear(self._rounded(h_BF, -1), self._w2_by_F, ends_e)

    def down_dgrad(self, dout_BD: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_matmul(self._rounded(dout_BD, -1), self._w2_by_D, ends_e)

    def down_wgrad(self, dout_BD: Tensor, h_BF: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_outer(self._rounded(dout_BD, 0), self._rounded(h_BF, 0), ends_e)

    def up_dgrad(self, dh13_BG: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_matmul(self._rounded(dh13_BG, -1), self._w13_by_G, ends_e)

    def up_wgrad(self, dh13_BG: Tensor, x_BD: Tensor, ends_e: Tensor) -> Tensor:
        return gemm.grouped_outer(self._rounded(dh13_BG, 0), self._rounded(x_BD, 0), ends_e)
