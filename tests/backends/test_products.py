"""Products and activations of the expert MLP, forward and backward, against autograd in double precision."""

import pytest
import torch
import torch.nn.functional as F

from moebench.backends import gemm
from moebench.backends.combine import combine, combine_backward, places, sum_of_rows
from moebench.backends.shared import shared_backward, shared_forward
from moebench.backends.swiglu import swiglu, swiglu_backward

ROUNDING = 2.0**-8


def normal(*shape: int, dtype=torch.bfloat16, scale=1.0):
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def close(got, want):
    assert got.shape == want.shape
    error = (got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30)
    assert error < ROUNDING


@pytest.mark.parametrize("counts", [[4, 0, 3], [0, 0, 7], [7, 0, 0], [0, 0, 0]])
def test_grouped_products_take_each_experts_rows_and_no_others(counts):
    R, ends_e = sum(counts), gemm.ends_of(torch.tensor(counts))
    assert ends_e.dtype == torch.int32
    x_RI, w_eOI, g_RO = normal(R, 8), normal(3, 6, 8), normal(R, 6)
    experts = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    w_ROI = w_eOI.double()[experts]
    close(gemm.grouped_linear(x_RI, w_eOI, ends_e), torch.einsum("ri,roi->ro", x_RI.double(), w_ROI))
    close(gemm.grouped_matmul(g_RO, w_eOI, ends_e), torch.einsum("ro,roi->ri", g_RO.double(), w_ROI))
    by_expert = F.one_hot(experts, 3).double()
    close(
        gemm.grouped_outer(g_RO, x_RI, ends_e),
        torch.einsum("re,ro,ri->eoi", by_expert, g_RO.double(), x_RI.double()),
    )


def test_weight_gradient_of_an_expert_without_rows_is_exactly_zero():
    got = gemm.grouped_outer(normal(4, 6), normal(4, 8), gemm.ends_of(torch.tensor([4, 0])))
    assert not got[1].any()


def test_swiglu_and_its_gradient():
    h13, dh = normal(5, 16), normal(5, 8)
    leaf = h13.double().requires_grad_()
    gate, up = leaf.chunk(2, dim=1)
    wanted = F.silu(gate) * up
    close(swiglu(h13), wanted.detach())
    (gradient,) = torch.autograd.grad(wanted, leaf, dh.double())
    dh13, h = swiglu_backward(dh, h13)
    close(dh13, gradient)
    close(h, wanted.detach())


def test_shared_expert_and_its_gradients():
    x, w13, w2, dy = normal(5, 16), normal(24, 16, scale=0.25), normal(16, 12, scale=0.25), normal(5, 16)
    leaves = [tensor.double().requires_grad_() for tensor in (x, w13, w2)]
    gate, up = (leaves[0] @ leaves[1].t()).chunk(2, dim=1)
    wanted = (F.silu(gate) * up) @ leaves[2].t()
    forward = shared_forward(x, w13, w2)
    close(forward.y_TD, wanted.detach())
    backward = shared_backward(dy, x, forward.h13_TG, w13, w2)
    found = (backward.dx_TD, backward.dw13_GD, backward.dw2_DF)
    for got, gradient in zip(found, torch.autograd.grad(wanted, leaves, dy.double()), strict=True):
        close(got, gradient)


SENT = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
"""Slots in the order in which their rows went out and came back."""


def test_places_say_where_the_row_of_each_slot_is():
    place_TK = places(SENT, 2)
    assert place_TK.shape == (5, 2)
    assert SENT[place_TK.reshape(-1)].tolist() == list(range(10))


def test_combine_and_its_gradients():
    rows, scores, shared, dy = normal(10, 8), normal(5, 2, dtype=torch.float32).abs(), normal(5, 8), normal(5, 8)
    place_TK = places(SENT, 2)
    leaves = [tensor.double().requires_grad_() for tensor in (rows, scores)]
    by_slot = torch.zeros(10, 8, dtype=torch.double).index_copy(0, SENT, leaves[0])
    wanted = (by_slot.view(5, 2, 8) * leaves[1].unsqueeze(2)).sum(1) + shared.double()
    close(combine(rows, place_TK, scores, shared), wanted.detach())
    close(combine(rows, place_TK, scores, None), (wanted - shared.double()).detach())
    drows, dscores = torch.autograd.grad(wanted, leaves, dy.double())
    got_rows, got_scores = combine_backward(rows, place_TK, scores, dy)
    close(got_rows, drows)
    close(got_scores, dscores)
    assert torch.equal(combine_backward(None, place_TK, scores, dy)[0], got_rows)


def test_gradient_of_x_is_the_sum_of_its_rows_and_the_shared_experts():
    rows, shared, place_TK = normal(10, 8), normal(5, 8), places(SENT, 2)
    wanted = torch.zeros(5, 8, dtype=torch.double).index_add(0, SENT // 2, rows.double())
    close(sum_of_rows(rows, place_TK, None), wanted)
    close(sum_of_rows(rows, place_TK, shared), wanted + shared.double())
