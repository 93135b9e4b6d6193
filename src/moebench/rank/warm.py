"""What the first case of a launch would pay for all others: code pages, thread pools, sockets, kernel loading."""

import torch

from moebench.backends import gemm
from moebench.backends.combine import combine, combine_backward, places
from moebench.backends.rows import sort_slots
from moebench.backends.shared import shared_backward, shared_forward
from moebench.quant.mxfp8 import Recipe, dequantize, quantize
from moebench.rank.exchange import Exchange

ROUNDS = 3


def warm_process(exchange: Exchange, device: torch.device) -> None:
    """Touch, in a few milliseconds, what backends are made of. Collective; nothing of it is recorded."""
    P, T, D, K = exchange.world_size, 64, 64, 2
    x_TD = torch.randn(T, D, device=device).bfloat16()
    w13_GD, w2_DF = torch.randn(2 * D, D, device=device).bfloat16(), torch.randn(D, D, device=device).bfloat16()
    ids_TK = torch.arange(T * K, device=device).view(T, K) % (2 * P)
    scores_TK = torch.rand(T, K, device=device)
    for _ in range(ROUNDS):
        exchange.all_gather("warm-up", ids_TK.short()).wait()
        slots_S = sort_slots(ids_TK.reshape(-1))
        rows_SD, place_TK = x_TD[slots_S // K], places(slots_S, K)
        even = [T * K // P] * P
        exchange.all_to_all("warm-up", rows_SD[: sum(even)], even, even).wait()
        shared = shared_forward(x_TD, w13_GD, w2_DF)
        shared_backward(shared.y_TD, x_TD, shared.h13_TG, w13_GD, w2_DF)
        ends_e = torch.tensor([T // 2, T], dtype=torch.int32, device=device)
        gemm.grouped_linear(x_TD, torch.stack([w13_GD, w13_GD]), ends_e)
        gemm.grouped_outer(x_TD, x_TD, ends_e)
        combine(rows_SD, place_TK, scores_TK, shared.y_TD)
        combine_backward(rows_SD, place_TK, scores_TK, x_TD)
        dequantize(quantize(x_TD, Recipe.FLOOR))
    exchange.ledger.clear()
