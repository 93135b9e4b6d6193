"""The weighted sum that ends a layer, in FP32, k ascending, rounded once; and its gradients.

Rows stay in the order in which they came back; `place_TK` says which row belongs to each slot of a token, so no
pass over memory is spent on putting them in order. S = T*K slots.
"""

import torch
from torch import Tensor


def places(slots_S: Tensor, topk: int) -> Tensor:
    """place_TK of rows that came back in the order of `slots_S`."""
    place_S = torch.empty_like(slots_S)
    place_S[slots_S] = torch.arange(len(slots_S), device=slots_S.device)
    return place_S.view(-1, topk)


def combine(rows_SD: Tensor, place_TK: Tensor, scores_TK: Tensor, shared_TD: Tensor | None) -> Tensor:
    """y_TD = shared + sum over k of score * row, in the dtype of the rows."""
    return _weighted_sum(rows_SD, place_TK, scores_TK, shared_TD)


def sum_of_rows(rows_SD: Tensor, place_TK: Tensor, shared_TD: Tensor | None) -> Tensor:
    """Gradient of x from the gradients of its K rows, [T, D], plus the shared expert's."""
    return _weighted_sum(rows_SD, place_TK, None, shared_TD)


def _weighted_sum(rows_SD: Tensor, place_TK: Tensor, scores_TK: Tensor | None, shared_TD: Tensor | None) -> Tensor:
    if rows_SD.is_cuda:
        from moebench.backends import triton_kernels

        return triton_kernels.combine(rows_SD, place_TK, scores_TK, shared_TD)
    rows_TKD = rows_SD[place_TK].float()
    y_TD = rows_TKD.sum(dim=1) if scores_TK is None else torch.einsum("tkd,tk->td", rows_TKD, scores_TK)
    if shared_TD is not None:
        y_TD = y_TD + shared_TD.float()
    return y_TD.to(rows_SD.dtype)


def combine_backward(
    rows_SD: Tensor | None, place_TK: Tensor, scores_TK: Tensor, dy_TD: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the rows, score * dy in the order of the rows [S, D], and of the scores, row * dy [T, K].

    Without rows the scores get none: mok computes theirs where the experts are.
    """
    if dy_TD.is_cuda:
        from moebench.backends import triton_kernels

        return triton_kernels.combine_backward(rows_SD, place_TK, scores_TK, dy_TD)
    drows_TKD = (scores_TK.unsqueeze(-1) * dy_TD.float().unsqueeze(1)).to(dy_TD.dtype)
    drows_SD = dy_TD.new_empty(place_TK.numel(), dy_TD.shape[1])
    drows_SD[place_TK.reshape(-1)] = drows_TKD.view(-1, dy_TD.shape[1])
    if rows_SD is None:
        return drows_SD, None
    return drows_SD, torch.einsum("tkd,td->tk", rows_SD[place_TK].float(), dy_TD.float())
