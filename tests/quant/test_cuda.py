"""A GPU makes the bytes that a CPU makes, and nothing waits for it."""

from collections.abc import Iterator

import pytest
import torch

from moebench.quant.mxfp8 import Quantized, Recipe, dequantize, pack_rows, quantize, quantize_tiles, unpack_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def bits(dtype: torch.dtype) -> torch.Tensor:
    """Random bits and every bf16 number: with NaN, Inf, subnormals, and exponents clamped at both ends."""
    draw = torch.Generator().manual_seed(3)
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float().view(-1, 32)
    tops = torch.exp2(torch.randint(-149, 127, (4096, 1), generator=draw).double())
    near = (torch.randn(4096, 32, generator=draw).double() * tops).float()
    largest = torch.zeros(2**16, 32)
    largest[:, 0] = every.flatten()
    return torch.cat((every, near, largest)).to(dtype)


def without_nan_sign(q: torch.Tensor) -> torch.Tensor:
    q = q.view(torch.uint8)
    return torch.where(q & 0x7F == 0x7F, 0x7F, q)


@pytest.mark.parametrize("recipe", list(Recipe))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cut", [quantize, quantize_tiles, lambda x, recipe: quantize(x, recipe, axis=-2)])
def test_quantizes_to_the_same_bytes(cut, dtype: torch.dtype, recipe: Recipe, no_waiting: None) -> None:  # type: ignore[no-untyped-def]
    x = bits(dtype)
    on_gpu = x.pin_memory().to("cuda", non_blocking=True)
    cpu, gpu = cut(x, recipe), cut(on_gpu, recipe)
    values = dequantize(gpu)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(gpu.scales.cpu(), cpu.scales)
    assert torch.equal(without_nan_sign(gpu.q.cpu()), without_nan_sign(cpu.q))
    assert torch.equal(values.cpu().nan_to_num(nan=7), dequantize(cpu).nan_to_num(nan=7))


def test_every_q_under_every_scale_dequantizes_to_the_same_bits() -> None:
    q = torch.arange(256, dtype=torch.uint8).repeat(256, 1).view(torch.float8_e4m3fn)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 8)
    cpu = dequantize(Quantized(q, scales))
    gpu = dequantize(Quantized(q.cuda(), scales.cuda())).cpu()
    number = ~cpu.isnan()
    assert torch.equal(gpu.isnan(), cpu.isnan())
    assert torch.equal(gpu.view(torch.int16)[number], cpu.view(torch.int16)[number])


def test_packed_rows_cross_over() -> None:
    x = quantize(torch.randn(33, 96), Recipe.CEIL)
    back = unpack_rows(pack_rows(Quantized(x.q.cuda(), x.scales.cuda())), 96)
    assert torch.equal(dequantize(back).cpu(), dequantize(x))
