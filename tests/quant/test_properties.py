"""What holds of any input: shapes, layouts, errors made, and a second quantisation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.quant.mxfp8 import Quantized, Recipe, dequantize, quantize, quantize_tiles

BOTH = pytest.mark.parametrize("recipe", list(Recipe))


def sample(*shape: int, seed: int = 0, spread: float = 3.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers over several binades, so that blocks differ in scale."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=draw) * torch.exp2(spread * torch.randn(shape, generator=draw))
    return x.to(dtype)


def same(a: Quantized, b: Quantized) -> bool:
    return torch.equal(a.q.view(torch.uint8), b.q.view(torch.uint8)) and torch.equal(a.scales, b.scales)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_shapes_and_types(recipe: Recipe, dtype: torch.dtype) -> None:
    x = sample(2, 3, 64, 96, dtype=dtype)
    for quantized, shape in (
        (quantize(x, recipe), (2, 3, 64, 3)),
        (quantize(x, recipe, axis=-2), (2, 3, 2, 96)),
        (quantize_tiles(x, recipe), (2, 3, 2, 3)),
    ):
        assert (quantized.q.shape, quantized.scales.shape) == (x.shape, shape)
        assert (quantized.q.dtype, quantized.scales.dtype) == (torch.float8_e4m3fn, torch.uint8)
        assert dequantize(quantized).dtype == torch.bfloat16
        assert dequantize(quantized).shape == x.shape


@BOTH
def test_axis_minus_two_is_axis_minus_one_of_the_transpose(recipe: Recipe) -> None:
    x = sample(3, 64, 40)
    down, across = quantize(x, recipe, axis=-2), quantize(x.mT.contiguous(), recipe)
    assert same(down, Quantized(across.q.mT, across.scales.mT))
    assert torch.equal(dequantize(down), dequantize(across).mT)
    assert same(quantize(x, recipe, axis=1), down)


@BOTH
def test_one_q_in_tiles_serves_the_transpose(recipe: Recipe) -> None:
    x = sample(2, 64, 96)
    tiles, turned = quantize_tiles(x, recipe), quantize_tiles(x.mT, recipe)
    assert same(Quantized(tiles.q.mT, tiles.scales.mT), turned)
    assert torch.equal(dequantize(tiles).mT, dequantize(turned))


@BOTH
def test_layout_does_not_matter(recipe: Recipe) -> None:
    wide = sample(6, 129)
    for view in (wide[::2, 1:], wide[:, ::4][:, 1:], wide[:1, 1:].expand(5, 128)):
        assert same(quantize(view, recipe), quantize(view.clone(), recipe))


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (0, 0), (2, 0, 32)])
def test_no_rows_or_no_columns(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    rows = quantize(x, Recipe.FLOOR)
    assert rows.scales.shape == (*shape[:-1], shape[-1] // 32)
    assert dequantize(rows).shape == shape
    assert dequantize(quantize(x, Recipe.CEIL, axis=-2) if shape[-2] % 32 == 0 else rows).shape == shape


def test_the_input_stays_as_it_was() -> None:
    x = sample(4, 64) * 1e4
    before = x.clone()
    quantize(x, Recipe.FLOOR)
    assert torch.equal(x, before)


def test_no_gradient_flows() -> None:
    x = sample(4, 64).requires_grad_()
    quantized = quantize(x, Recipe.CEIL)
    assert not quantized.q.requires_grad
    assert not dequantize(quantized).requires_grad


@pytest.mark.parametrize("make", [sample, lambda *shape: sample(*shape) * 2.0**-125])
@pytest.mark.parametrize("cut", [quantize, quantize_tiles])
def test_quantising_again_changes_no_value(make, cut) -> None:  # type: ignore[no-untyped-def]
    for recipe in Recipe:
        once = dequantize(cut(make(64, 4096), recipe))
        assert torch.equal(dequantize(cut(once, recipe)), once)


def test_quantising_again_under_floor_changes_no_byte() -> None:
    first = quantize(sample(64, 4096), Recipe.FLOOR)
    assert same(quantize(dequantize(first), Recipe.FLOOR), first)


def test_quantising_again_under_ceil_may_take_the_next_smaller_scale() -> None:
    x = torch.zeros(32)
    x[0], x[1] = 450.0, 1.0
    first = quantize(x, Recipe.CEIL)
    again = quantize(dequantize(first), Recipe.CEIL)
    assert (first.scales.item(), again.scales.item()) == (128, 127)
    assert (first.q[:2].tolist(), again.q[:2].tolist()) == ([224.0, 0.5], [448.0, 1.0])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31), exponent=st.integers(-90, 90), dtype=st.sampled_from([torch.bfloat16, torch.float32])
)
def test_error_bounds(seed: int, exponent: int, dtype: torch.dtype) -> None:
    """Half a step: 1/16 of the element, or 2^-10 scales below E4M3's normal numbers; FLOOR loses 1/8 at the top."""
    x = (sample(8, 256, seed=seed) * 2.0**exponent).to(dtype)
    for recipe in Recipe:
        quantized = quantize(x, recipe)
        unit = torch.exp2(quantized.scales.double() - 127).repeat_interleave(32, dim=1)
        error = (dequantize(quantized).double() - x.double()).abs()
        top = (x.double().abs() > 448 * unit) if recipe is Recipe.FLOOR else torch.zeros_like(x, dtype=torch.bool)
        bound = torch.maximum(x.double().abs() / 16, 2.0**-10 * unit)
        assert (error <= bound)[~top].all()
        assert (error <= x.double().abs() / 8)[top].all()


@pytest.mark.parametrize(("shape", "axis"), [((4, 33), -1), ((4, 31), -1), ((40, 64), -2), ((8, 64), 0)])
def test_a_partial_block_is_refused_by_shape(shape: tuple[int, int], axis: int) -> None:
    with pytest.raises(ValueError, match=rf"\[{shape[0]}, {shape[1]}\] is no multiple of 32"):
        quantize(torch.zeros(shape), Recipe.FLOOR, axis)


def test_tiles_need_two_whole_axes() -> None:
    for shape in ((64, 40), (40, 64)):
        with pytest.raises(ValueError, match=rf"\[{shape[0]}, {shape[1]}\] is no multiple of 32"):
            quantize_tiles(torch.zeros(shape), Recipe.FLOOR)
    with pytest.raises(ValueError, match=r"\[64\] has no two axes"):
        quantize_tiles(torch.zeros(64), Recipe.FLOOR)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="bf16 or fp32, not torch"):
        quantize(torch.zeros(32, dtype=dtype), Recipe.CEIL)


@pytest.mark.parametrize("scales", [(4, 3), (2, 2), (4,), (4, 2, 1), (4, 64)])
def test_scales_that_do_not_fit_are_refused(scales: tuple[int, ...]) -> None:
    q = torch.zeros(4, 64).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"q has shape \[4, 64\]"):
        dequantize(Quantized(q, torch.zeros(scales, dtype=torch.uint8)))
