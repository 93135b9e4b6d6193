"""Fused kernels for the memory-bound steps on CUDA. Triton comes with CUDA builds of torch; a CPU never imports this.

All compute in FP32 and round once, as the plain versions beside their callers do. Legend: T tokens, K choices, S = T*K
slots, D hidden, R rows, F FFN width, G = 2F. `place_TK` is the row that belongs to each slot.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _swiglu(h13_ptr, h_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    gate = tl.load(h13_ptr + row * 2 * F + column, mask=inside).to(tl.float32)
    up = tl.load(h13_ptr + row * 2 * F + F + column, mask=inside).to(tl.float32)
    h = gate * tl.sigmoid(gate) * up
    tl.store(h_ptr + row * F + column, h.to(h_ptr.dtype.element_ty), mask=inside)


def swiglu(h13_RG: Tensor) -> Tensor:
    R, G = h13_RG.shape
    h_RF = h13_RG.new_empty(R, G // 2)
    if R:
        _swiglu[(R, triton.cdiv(G // 2, BLOCK))](h13_RG, h_RF, G // 2, BLOCK=BLOCK)
    return h_RF


@triton.jit
def _swiglu_backward(dh_ptr, h13_ptr, dh13_ptr, h_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    gate = tl.load(h13_ptr + row * 2 * F + column, mask=inside).to(tl.float32)
    up = tl.load(h13_ptr + row * 2 * F + F + column, mask=inside).to(tl.float32)
    dh = tl.load(dh_ptr + row * F + column, mask=inside).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    dgate = dh * up * (sigmoid + silu * (1 - sigmoid))
    to = dh13_ptr.dtype.element_ty
    tl.store(dh13_ptr + row * 2 * F + column, dgate.to(to), mask=inside)
    tl.store(dh13_ptr + row * 2 * F + F + column, (dh * silu).to(to), mask=inside)
    tl.store(h_ptr + row * F + column, (silu * up).to(to), mask=inside)


def swiglu_backward(dh_RF: Tensor, h13_RG: Tensor) -> tuple[Tensor, Tensor]:
    R, F = dh_RF.shape
    dh13_RG, h_RF = torch.empty_like(h13_RG), torch.empty_like(dh_RF)
    if R:
        _swiglu_backward[(R, triton.cdiv(F, BLOCK))](dh_RF, h13_RG, dh13_RG, h_RF, F, BLOCK=BLOCK)
    return dh13_RG, h_RF


@triton.jit
def _combine(
    rows_ptr, place_ptr, scores_ptr, shared_ptr, y_ptr, D,
    K: tl.constexpr, SCORED: tl.constexpr, SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in tl.static_range(K):
        row = tl.load(place_ptr + token * K + k).to(tl.int64)
        value = tl.load(rows_ptr + row * D + column, mask=inside).to(tl.float32)
        if SCORED:
            value *= tl.load(scores_ptr + token * K + k)
        total += value
    if SHARED:
        total += tl.load(shared_ptr + token * D + column, mask=inside).to(tl.float32)
    tl.store(y_ptr + token * D + column, total.to(y_ptr.dtype.element_ty), mask=inside)


def combine(rows_SD: Tensor, place_TK: Tensor, scores_TK: Tensor | None, shared_TD: Tensor | None) -> Tensor:
    (T, K), D = place_TK.shape, rows_SD.shape[1]
    y_TD = rows_SD.new_empty(T, D)
    _combine[(T, triton.cdiv(D, BLOCK))](
        rows_SD, place_TK, scores_TK, shared_TD, y_TD, D,
        K=K, SCORED=scores_TK is not None, SHARED=shared_TD is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return y_TD


@triton.jit
def _combine_backward(
    rows_ptr, place_ptr, scores_ptr, dy_ptr, drows_ptr, dscores_ptr, D,
    K: tl.constexpr, PRODUCT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(place_ptr + slot).to(tl.int64)
    score = tl.load(scores_ptr + slot)
    product = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, D, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < D
        dy = tl.load(dy_ptr + (slot // K) * D + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(drows_ptr + row * D + column, (dy * score).to(drows_ptr.dtype.element_ty), mask=inside)
        if PRODUCT:
            product += dy * tl.load(rows_ptr + row * D + column, mask=inside, other=0.0).to(tl.float32)
    if PRODUCT:
        tl.store(dscores_ptr + slot, tl.sum(product))


def combine_backward(
    rows_SD: Tensor | None, place_TK: Tensor, scores_TK: Tensor, dy_TD: Tensor
) -> tuple[Tensor, Tensor | None]:
    (T, K), D = place_TK.shape, dy_TD.shape[1]
    drows_SD = dy_TD.new_empty(T * K, D)
    dscores_TK = None if rows_SD is None else torch.empty_like(scores_TK)
    _combine_backward[(T * K,)](
        rows_SD, place_TK, scores_TK, dy_TD, drows_SD, dscores_TK, D,
        K=K, PRODUCT=rows_SD is not None, BLOCK=BLOCK,
    )  # fmt: skip
    return drows_SD, dscores_TK


@triton.jit
def _stream_linear(
    x_ptr, w_ptr, ends_ptr, out_ptr, O, I,
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(1).to(tl.int64)
    end = tl.load(ends_ptr + expert)
    start = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    output = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    inner = tl.arange(0, BLOCK_I)
    w_tile = w_ptr + expert * O * I + output[None, :].to(tl.int64) * I + inner[:, None]
    for first in range(start, end, BLOCK_R):
        row = first + tl.arange(0, BLOCK_R)
        x_tile = x_ptr + row[:, None].to(tl.int64) * I + inner[None, :]
        total = tl.zeros((BLOCK_R, BLOCK_O), dtype=tl.float32)
        for i in range(0, I, BLOCK_I):
            inside = inner + i < I
            x = tl.load(x_tile + i, mask=(row[:, None] < end) & inside[None, :], other=0.0)
            w = tl.load(w_tile + i, mask=(output[None, :] < O) & inside[:, None], other=0.0)
            total = tl.dot(x, w, total)
        into = out_ptr + row[:, None].to(tl.int64) * O + output[None, :]
        tl.store(into, total.to(out_ptr.dtype.element_ty), mask=(row[:, None] < end) & (output[None, :] < O))


def stream_linear(x_RI: Tensor, w_eOI: Tensor, ends_e: Tensor) -> Tensor:
    """Rows of expert e times w[e]^T where experts have few rows each, so that reading the weights is the work."""
    e, O, I = w_eOI.shape
    out_RO = x_RI.new_empty(x_RI.shape[0], O)
    _stream_linear[(triton.cdiv(O, 128), e)](
        x_RI, w_eOI, ends_e, out_RO, O, I, BLOCK_R=32, BLOCK_O=128, BLOCK_I=128, num_stages=4, num_warps=4
    )
    return out_RO
