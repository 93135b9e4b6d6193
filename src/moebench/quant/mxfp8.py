"""MXFP8 block scaling: E4M3 elements that share one power-of-two scale per block of 32 (OCP MX v1.0).

Everything is elementwise or a block maximum, gives the same bytes on every device, and never waits for the
device: it runs inside the timed region. Nothing here is differentiable; a backend chooses its own backward.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch

BLOCK = 32
E4M3_MAX = 448.0
NAN_SCALE = 255
"""The scale byte of a block that holds NaN or Inf: the whole block reads as NaN."""

_BIAS = 127
_SMALLEST_NORMAL = 2.0**-126
_INTEGER = {torch.bfloat16: (torch.int16, 0x7FFF), torch.float32: (torch.int32, 0x7FFF_FFFF)}
"""For each input type the integer of its width, and the mask that drops its sign."""


class Recipe(StrEnum):
    """How a block's scale 2^e follows from its largest magnitude amax = m*2^x, 0.5 <= m < 1."""

    FLOOR = "floor"
    """e = x-9: the largest element lands in [256, 512) and saturates above 448. torch and dist_moe."""
    CEIL = "ceil"
    """e = x-9, one more when m > 0.875: the largest element lands in (224, 448]. mok."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor in MXFP8: element i of a block is q[i] * 2^(scale byte - 127)."""

    q: torch.Tensor
    """float8_e4m3fn, in the shape of the tensor"""
    scales: torch.Tensor
    """uint8 E8M0 bytes; every axis is as long as q's, or 32 times shorter where blocks run along it"""


def quantize(x: torch.Tensor, recipe: Recipe, axis: int = -1) -> Quantized:
    """Quantise x, bf16 or fp32, in blocks of 32 along one axis.

    Elements round to nearest even. A zero block has scale byte 0; in a block with NaN or Inf the byte is 255
    and every q is NaN, of either sign. Scales never exceed byte 247, since fp32 ends below 2^128.
    Raises ValueError when x has another type or the axis is no multiple of 32.
    """
    x.size(axis)  # raises IndexError for an axis that x lacks
    return _quantize(x, recipe, {axis % x.dim()})


def quantize_tiles(x: torch.Tensor, recipe: Recipe) -> Quantized:
    """Quantise x in tiles of 32 x 32 of its last two axes, so that one q serves x and its transpose.

    Scales are [..., rows/32, columns/32]. Values and errors are those of quantize.
    """
    if x.dim() < 2:
        raise ValueError(f"a tensor of shape {list(x.shape)} has no two axes to cut into tiles")
    return _quantize(x, recipe, {x.dim() - 2, x.dim() - 1})


@torch.no_grad()
def dequantize(x: Quantized) -> torch.Tensor:
    """The bf16 values of x, whichever axes its blocks run along.

    Exact, for an E4M3 value has 4 significant bits and bf16 has 8, but at bf16's ends: magnitudes from
    (2 - 2^-8) * 2^127 are Inf (256 * 2^120, which CEIL makes of an amax from 0.96875 * 2^128), and at scale
    bytes below 3 the values between multiples of 2^-133, bf16's smallest subnormal, round to nearest even.
    Raises ValueError when the scales do not fit q.
    """
    if x.scales.dim() != x.q.dim():
        raise ValueError(_misfit(x))
    blocked = {i for i, (n, s) in enumerate(zip(x.q.shape, x.scales.shape, strict=True)) if n != s}
    fits = all(x.q.shape[i] == BLOCK * x.scales.shape[i] for i in blocked)
    if not fits or (not blocked and x.q.numel() > 0):
        raise ValueError(_misfit(x))
    values = _decode(x.q)
    blocks, inner = _split(values, blocked)
    scales = x.scales
    for dim in inner:
        scales = scales.unsqueeze(dim)
    blocks.mul_(_power_of_two(scales, torch.bfloat16))
    return values


def pack_rows(x: Quantized) -> torch.Tensor:
    """Rows quantised along their D elements as they travel: [R, D + D/32] uint8, scales after q.

    Raises ValueError when the blocks do not run along the rows.
    """
    if x.q.dim() != 2 or x.scales.shape != (x.q.size(0), x.q.size(1) // BLOCK):
        raise ValueError(f"only rows with blocks along their elements can be packed; {_misfit(x)}")
    return torch.cat((x.q.view(torch.uint8), x.scales), dim=1)


def unpack_rows(wire: torch.Tensor, D: int) -> Quantized:
    """The inverse of pack_rows, without a copy: q and scales are views of wire.

    Raises ValueError when wire is not [R, D + D/32].
    """
    if D % BLOCK or wire.dim() != 2 or wire.size(1) != D + D // BLOCK:
        raise ValueError(f"rows of D={D} travel as [R, D + D/{BLOCK}], not as {list(wire.shape)}")
    return Quantized(wire[:, :D].view(torch.float8_e4m3fn), wire[:, D:])


@torch.no_grad()
def _quantize(x: torch.Tensor, recipe: Recipe, axes: Collection[int]) -> Quantized:
    if x.dtype not in _INTEGER:
        raise ValueError(f"MXFP8 quantises bf16 or fp32, not {x.dtype}")
    for axis in axes:
        if x.size(axis) % BLOCK:
            raise ValueError(f"axis {axis} of a tensor of shape {list(x.shape)} is no multiple of {BLOCK}")
    blocks, inner = _split(x, axes)
    scales = _scale_bytes(_amax(blocks, inner), recipe)
    # In x's own type: a product by a power of two is exact, and what underflows is far below E4M3's grid.
    # 254 - 255 wraps to 255, so a NaN block is multiplied by NaN.
    scaled = blocks * _power_of_two(254 - scales, x.dtype)
    # Above 448 a CPU's cast saturates and CUDA's makes NaN. CEIL stays below, but is charged the same pass.
    q = scaled.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return Quantized(q.reshape(x.shape), scales.squeeze(inner))


def _split(x: torch.Tensor, axes: Collection[int]) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A view of x with each of the axes cut in [n/32, 32], and where the 32s then are."""
    shape: list[int] = []
    inner: list[int] = []
    for axis, size in enumerate(x.shape):
        if axis in axes:
            shape += [size // BLOCK, BLOCK]
            inner.append(len(shape) - 1)
        else:
            shape.append(size)
    return x.view(shape), tuple(inner)


def _amax(blocks: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The largest magnitude over dims, which stay as 1, in fp32; NaN beats Inf."""
    # Magnitudes order as their bits do, and integer maxima are three times faster than bf16 ones on a CPU.
    integer, magnitude = _INTEGER[blocks.dtype]
    bits = blocks.view(integer) & magnitude
    for dim in reversed(dims):
        bits = bits.amax(dim, keepdim=True)
    return bits.view(blocks.dtype).float()


def _scale_bytes(amax: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """E8M0 bytes e + 127 for the given largest magnitudes, e held in [-127, 127]."""
    # From 2^-126 down the byte is 0 under both recipes, so frexp needs no zeros or subnormals.
    m, x = torch.frexp(amax.clamp_min(_SMALLEST_NORMAL))
    e = x - 9
    if recipe is Recipe.CEIL:
        e += m > 0.875
    e.clamp_(-_BIAS, _BIAS)
    return torch.where(amax < torch.inf, e + _BIAS, NAN_SCALE).to(torch.uint8)


def _power_of_two(scale_bytes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return scale_bytes.view(torch.float8_e8m0fnu).to(dtype)


def _decode(q: torch.Tensor) -> torch.Tensor:
    """E4M3 as bf16, always a new contiguous tensor."""
    if q.device.type != "cpu":
        return q.to(torch.bfloat16, memory_format=torch.contiguous_format)
    # torch casts E4M3 one by one on a CPU: looking up two at a time is eight times faster.
    flat = q.contiguous().view(-1)
    if flat.storage_offset() % 2:
        flat = flat.clone()
    pairs = _pairs().index_select(0, flat.view(torch.uint16).int())
    return pairs.view(torch.bfloat16).view(q.shape)


@cache
def _pairs() -> torch.Tensor:
    """Every two neighbouring E4M3 values, [65536], as two bf16 in one int32."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.float8_e4m3fn)
    return every.to(torch.bfloat16).view(torch.int32)


def _misfit(x: Quantized) -> str:
    return f"q has shape {list(x.q.shape)}, its scales {list(x.scales.shape)}"
