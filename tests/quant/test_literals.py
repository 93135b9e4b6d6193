"""Bytes worked out by hand. E4M3: sign, 4 bits of exponent + 7, 3 of mantissa. Scale byte: exponent + 127."""

import math

import pytest
import torch

from moebench.quant.mxfp8 import Recipe, dequantize, quantize, quantize_tiles

FLOOR, CEIL = Recipe.FLOOR, Recipe.CEIL
BOTH = pytest.mark.parametrize("recipe", list(Recipe))


def block(*leading: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.zeros(32, dtype=dtype)
    x[: len(leading)] = torch.tensor(leading, dtype=dtype)
    return x


def encode(recipe: Recipe, *leading: float, dtype: torch.dtype = torch.float32) -> tuple[int, list[int]]:
    quantized = quantize(block(*leading, dtype=dtype), recipe)
    return int(quantized.scales), quantized.q.view(torch.uint8)[: len(leading)].tolist()


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_small_block_by_hand(recipe: Recipe, dtype: torch.dtype) -> None:
    # amax 3 = 0.75*2^2, so e = 2-9 = -7: times 128 gives 384 = 1.5*2^8, 2^7, -2^8 and 12.8 = 1.6*2^3 -> 13.
    assert encode(recipe, 3.0, 1.0, -2.0, 0.1, 0.0, dtype=dtype) == (120, [0x7C, 0x70, 0xF8, 0x55, 0x00])
    values = dequantize(quantize(block(3.0, 1.0, -2.0, 0.1, dtype=dtype), recipe))
    assert values[:5].tolist() == [3.0, 1.0, -2.0, 13 / 128, 0.0]


@pytest.mark.parametrize(
    ("amax", "floor", "ceil"),
    [
        (0.4375, (117, 0x7E), (117, 0x7E)),
        (1.0, (119, 0x78), (119, 0x78)),
        (2.0**20, (139, 0x78), (139, 0x78)),
        (2.0**-20, (99, 0x78), (99, 0x78)),
        (256.0, (127, 0x78), (127, 0x78)),
        (448.0, (127, 0x7E), (127, 0x7E)),
        (448.0 + 2**-15, (127, 0x7E), (128, 0x76)),
        (449.0, (127, 0x7E), (128, 0x76)),
        (480.0, (127, 0x7E), (128, 0x77)),
        (511.0, (127, 0x7E), (128, 0x78)),
        (512.0, (128, 0x78), (128, 0x78)),
        (-480.0, (127, 0xFE), (128, 0xF7)),
    ],
)
def test_largest_element(amax: float, floor: tuple[int, int], ceil: tuple[int, int]) -> None:
    for recipe, (scale, q) in ((FLOOR, floor), (CEIL, ceil)):
        assert encode(recipe, amax) == (scale, [q])


def test_ceil_raises_the_scale_only_above_seven_eighths() -> None:
    assert encode(CEIL, 0.875) == (118, [0x7E])
    assert encode(CEIL, 0.875 + 2**-24) == (119, [0x76])


@BOTH
def test_ties_go_to_the_even_neighbour(recipe: Recipe) -> None:
    # amax 448 makes e = 0: 17 and 19 lie between 16, 18 and 20, half of E4M3's smallest number next to 0.
    ties = (448.0, 17.0, 19.0, -17.0, 2.0**-10, 3 * 2.0**-10)
    assert encode(recipe, *ties) == (127, [0x7E, 0x58, 0x5A, 0xD8, 0x00, 0x02])


@BOTH
def test_a_zero_block_is_all_zero_bytes_and_keeps_signs(recipe: Recipe) -> None:
    assert encode(recipe, 0.0, -0.0) == (0, [0x00, 0x80])
    assert dequantize(quantize(block(0.0, -0.0), recipe)).view(torch.int16)[:2].tolist() == [0, -0x8000]


@BOTH
@pytest.mark.parametrize(
    ("tiny", "scale", "q"),
    [
        (2.0**-149, 0, 0x00),
        (2.0**-137, 0, 0x00),
        (1.5 * 2.0**-137, 0, 0x01),
        (2.0**-136, 0, 0x01),
        (2.0**-133, 0, 0x08),
        (2.0**-126, 0, 0x40),
        (2.0**-120, 0, 0x70),
        (2.0**-119, 0, 0x78),
        (2.0**-118, 1, 0x78),
    ],
)
def test_smallest_inputs(recipe: Recipe, tiny: float, scale: int, q: int) -> None:
    assert encode(recipe, tiny) == (scale, [q])
    assert encode(recipe, -tiny) == (scale, [q | 0x80])


def test_largest_inputs_fit_bf16_under_floor_and_overflow_it_under_ceil() -> None:
    largest = torch.finfo(torch.float32).max
    assert encode(FLOOR, largest) == (246, [0x7E])
    assert encode(CEIL, largest) == (247, [0x78])
    assert dequantize(quantize(block(largest), FLOOR))[0].item() == 448 * 2.0**119
    assert dequantize(quantize(block(largest), CEIL))[0].item() == math.inf
    below_the_tie = (0.96875 - 2**-24) * 2.0**128
    assert dequantize(quantize(block(below_the_tie), CEIL))[0].item() == 240 * 2.0**120


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
def test_one_bad_element_makes_its_block_nan_and_no_other(recipe: Recipe, dtype: torch.dtype, bad: float) -> None:
    x = torch.ones(3, 64, dtype=dtype)
    x[1, 40] = bad
    quantized = quantize(x, recipe)
    assert quantized.scales.tolist() == [[119, 119], [119, 255], [119, 119]]
    assert quantized.q[1, 32:].float().isnan().all()
    values = dequantize(quantized)
    assert values[1, 32:].isnan().all()
    values[1, 32:] = 1
    assert torch.equal(values, torch.ones(3, 64, dtype=torch.bfloat16))


def test_one_bad_element_makes_its_tile_nan_and_no_other() -> None:
    x = torch.ones(64, 64)
    x[5, 40] = -math.nan
    quantized = quantize_tiles(x, CEIL)
    assert quantized.scales.tolist() == [[119, 255], [119, 119]]
    assert dequantize(quantized).isnan().nonzero().amin(0).tolist() == [0, 32]
    assert dequantize(quantized).isnan().sum() == 32 * 32


def test_a_tile_shares_one_scale() -> None:
    x = torch.zeros(32, 64)
    x[31, 0], x[0, 31], x[7, 32] = 3.0, 0.1, 480.0
    floor, ceil = quantize_tiles(x, FLOOR), quantize_tiles(x, CEIL)
    assert (floor.scales.tolist(), ceil.scales.tolist()) == ([[120, 127]], [[120, 128]])
    assert [int(q.view(torch.uint8)) for q in (floor.q[31, 0], floor.q[0, 31])] == [0x7C, 0x55]
    assert (floor.q[7, 32].item(), ceil.q[7, 32].item()) == (448.0, 240.0)
