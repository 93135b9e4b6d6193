"""Every bf16 number, and blocks of any shape, against the scalar version."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moebench.quant.mxfp8 import Quantized, Recipe, dequantize, quantize, quantize_tiles

from . import scalar

BOTH = pytest.mark.parametrize("recipe", list(Recipe))
BITS = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
EVERY_BF16 = BITS.view(torch.bfloat16)


def q_bytes(quantized: Quantized) -> list[int]:
    return quantized.q.view(torch.uint8).flatten().tolist()


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_bf16_number_as_the_largest_of_its_block(recipe: Recipe, dtype: torch.dtype) -> None:
    x = torch.zeros(2**16, 32, dtype=dtype)
    x[:, 9] = EVERY_BF16.to(dtype)
    quantized = quantize(x, recipe)
    expected = [scalar.scale_byte(abs(v), recipe) for v in EVERY_BF16.tolist()]
    assert quantized.scales.flatten().tolist() == expected
    finite = EVERY_BF16.isfinite()
    firsts = [scalar.quantize([v], recipe)[1][0] for v in EVERY_BF16[finite].tolist()]
    assert quantized.q.view(torch.uint8)[finite, 9].tolist() == firsts


@BOTH
def test_every_bf16_number_rounds_to_the_nearest_e4m3(recipe: Recipe) -> None:
    within = EVERY_BF16[EVERY_BF16.abs() <= 448]
    x = torch.full((len(within), 32), 448.0, dtype=torch.bfloat16)
    x[:, 3] = within
    quantized = quantize(x, recipe)
    assert set(quantized.scales.flatten().tolist()) == {127}
    assert quantized.q.view(torch.uint8)[:, 3].tolist() == [scalar.e4m3(v) for v in within.tolist()]


def test_every_q_under_every_scale_dequantizes() -> None:
    q = torch.arange(256, dtype=torch.uint8).repeat(256, 1).view(torch.float8_e4m3fn)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 8)
    values = dequantize(Quantized(q, scales)).double()
    q_values = torch.tensor([scalar.value(byte) for byte in range(256)], dtype=torch.float64)
    exact = torch.stack([q_values * 2.0 ** (byte - 127) for byte in range(255)])
    exact[:3] = (exact[:3] / 2.0**-133).round() * 2.0**-133
    exact = torch.where(exact.abs() >= (2 - 2**-8) * 2.0**127, exact * math.inf, exact)
    torch.testing.assert_close(values[:255], exact, rtol=0, atol=0, equal_nan=True)
    assert exact[3:247].isinf().sum() == 0
    assert values[255].isnan().all()


def elements(dtype: torch.dtype) -> st.SearchStrategy[list[float]]:
    """32 numbers of dtype within some powers of two of each other, anywhere in its range."""
    digits = 24 if dtype == torch.float32 else 8
    mantissas = st.integers(-(2**digits) + 1, 2**digits - 1)
    element = st.tuples(mantissas, st.integers(0, 20))

    def place(drawn: tuple[int, list[tuple[int, int]]]) -> list[float]:
        top, pairs = drawn
        exact = [math.ldexp(m, top - digits - drop) for m, drop in pairs]
        return torch.tensor(exact, dtype=torch.float64).to(dtype).tolist()

    return st.tuples(st.integers(-150, 128), st.lists(element, min_size=32, max_size=32)).map(place)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@settings(max_examples=100, deadline=None)
@given(data=st.data(), recipe=st.sampled_from(Recipe))
def test_any_block(dtype: torch.dtype, data: st.DataObject, recipe: Recipe) -> None:
    block = data.draw(elements(dtype))
    quantized = quantize(torch.tensor(block, dtype=dtype), recipe)
    assert (int(quantized.scales), q_bytes(quantized)) == scalar.quantize(block, recipe)


@BOTH
def test_a_tile_is_the_block_of_all_its_elements(recipe: Recipe) -> None:
    x = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(1)) * 100
    quantized = quantize_tiles(x, recipe)
    for i, r, c in [(0, 0, 0), (1, 1, 2), (0, 1, 1)]:
        rows, columns = slice(32 * r, 32 * r + 32), slice(32 * c, 32 * c + 32)
        scale, q = scalar.quantize(x[i, rows, columns].flatten().tolist(), recipe)
        assert int(quantized.scales[i, r, c]) == scale
        assert q_bytes(Quantized(quantized.q[i, rows, columns], quantized.scales)) == q
