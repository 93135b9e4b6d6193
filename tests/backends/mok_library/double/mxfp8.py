"""mok's quantised weights: E4M3 elements, E8M0 bytes in tiles of [32, 16] for 128 rows by 128 columns."""

import torch
from torch import Tensor

from moebench.quant.mxfp8 import Quantized, Recipe, dequantize, quantize


def mxfp8_quantize(x_bf16, return_normal, return_transposed):
    if x_bf16.dtype != torch.bfloat16 or not x_bf16.is_contiguous() or x_bf16.ndim not in (2, 3):
        raise ValueError("x_bf16 must be contiguous bfloat16 [M, N] or [E, M, N]")
    if x_bf16.shape[-1] % 128 or x_bf16.shape[-2] % 128:
        raise ValueError("x_bf16 M and N dimensions must be divisible by 128")
    if type(return_normal) is not bool or type(return_transposed) is not bool:
        raise TypeError("return_normal and return_transposed must be booleans")
    if not return_normal and not return_transposed:
        raise ValueError("at least one quantized layout must be requested")
    normal = _packed(x_bf16) if return_normal else (None, None)
    transposed = _packed(x_bf16.transpose(-1, -2).contiguous()) if return_transposed else (None, None)
    return *normal, *transposed


def _packed(x: Tensor) -> tuple[Tensor, Tensor]:
    quantised = quantize(x, Recipe.CEIL)
    return quantised.q, tile(quantised.scales)


def tile(scales: Tensor) -> Tensor:
    rows, columns = scales.shape[:-1].numel(), scales.shape[-1]
    tiles = scales.reshape(rows // 128, 128, columns // 4, 4).transpose(1, 2)
    return tiles.reshape(rows // 128, columns // 4, 4, 32, 4).transpose(-2, -3).reshape(-1, columns // 4, 32, 16)


def untile(tiles: Tensor, shape: tuple[int, ...]) -> Tensor:
    rows = tiles.reshape(*tiles.shape[:2], 32, 4, 4).transpose(-2, -3).reshape(*tiles.shape[:2], 128, 4)
    return rows.transpose(1, 2).reshape(shape)


def unpack(name: str, pair: tuple[Tensor, Tensor], shape: tuple[int, int, int]) -> Tensor:
    """The bf16 values of (fp8, scales) of the expected [E, M, N]; ValueError where types or shapes are others."""
    q, scales = pair
    E, M, N = shape
    if q.dtype != torch.float8_e4m3fn or scales.dtype != torch.uint8:
        raise ValueError(f"{name} must be float8_e4m3fn with uint8 scales")
    if tuple(q.shape) != shape or tuple(scales.shape) != (E * M // 128, N // 128, 32, 16):
        raise ValueError(f"{name} has shape {tuple(q.shape)} and scales {tuple(scales.shape)}, not those of {shape}")
    return dequantize(Quantized(q, untile(scales, (E, M, N // 32))))
