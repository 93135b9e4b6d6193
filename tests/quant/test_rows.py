"""Quantised rows on the wire: D bytes of q, then D/32 scale bytes."""

import pytest
import torch

from moebench.quant.mxfp8 import Quantized, Recipe, dequantize, pack_rows, quantize, quantize_tiles, unpack_rows


def rows(R: int, D: int) -> Quantized:
    return quantize(torch.randn(R, D, generator=torch.Generator().manual_seed(R)), Recipe.FLOOR)


def test_a_row_is_its_elements_then_its_scales() -> None:
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 63] = 3.0, 512.0
    assert pack_rows(quantize(x, Recipe.FLOOR)).tolist() == [[0x7C, *[0] * 62, 0x78, 120, 128]]


@pytest.mark.parametrize(("R", "D"), [(5, 32), (1, 64), (0, 96), (7, 2048)])
def test_round_trip(R: int, D: int) -> None:
    x = rows(R, D)
    wire = pack_rows(x)
    assert (wire.shape, wire.dtype) == ((R, D + D // 32), torch.uint8)
    back = unpack_rows(wire, D)
    assert torch.equal(back.q.view(torch.uint8), x.q.view(torch.uint8))
    assert torch.equal(back.scales, x.scales)
    assert torch.equal(dequantize(back), dequantize(x))


def test_unpacking_copies_nothing() -> None:
    wire = pack_rows(rows(4, 64))
    back = unpack_rows(wire, 64)
    assert (back.q.data_ptr(), back.scales.data_ptr()) == (wire.data_ptr(), wire.data_ptr() + 64)


def test_received_rows_can_be_dequantized_from_any_offset() -> None:
    x = rows(6, 32)
    for start, stop in ((1, 2), (3, 4), (1, 6), (6, 6)):
        part = unpack_rows(pack_rows(x)[start:stop], 32)
        assert torch.equal(dequantize(part), dequantize(x)[start:stop])


def test_only_rows_can_be_packed() -> None:
    x = torch.zeros(64, 64)
    for other in (quantize(x, Recipe.CEIL, axis=-2), quantize_tiles(x, Recipe.CEIL), quantize(x[None], Recipe.CEIL)):
        with pytest.raises(ValueError, match="only rows"):
            pack_rows(other)


@pytest.mark.parametrize(("shape", "D"), [((4, 64), 64), ((4, 67), 64), ((66,), 64), ((4, 33), 33)])
def test_a_buffer_of_another_width_is_refused(shape: tuple[int, ...], D: int) -> None:
    with pytest.raises(ValueError, match=f"rows of D={D}"):
        unpack_rows(torch.zeros(shape, dtype=torch.uint8), D)
