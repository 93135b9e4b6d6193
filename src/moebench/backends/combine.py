"""The weighted sum that ends a layer, in FP32, k ascending, rounded once; and its gradients. S = T*K slots."""

import torch
from torch import Tensor


def combine(routed_SD: Tensor, scores_TK: Tensor, shared_TD: Tensor | None) -> Tensor:
    """y_TD = shared + sum over k of score * routed row, in the dtype of the rows."""
    routed_TKD = routed_SD.view(*scores_TK.shape, -1)
    y_TD = torch.einsum("tkd,tk->td", routed_TKD.float(), scores_TK)
    if shared_TD is not None:
        y_TD = y_TD + shared_TD.float()
    return y_TD.to(routed_SD.dtype)


def scaled_rows(dy_TD: Tensor, scores_TK: Tensor) -> Tensor:
    """Gradient of each routed row, [S, D]: score * dy, rounded to the dtype of dy."""
    scaled_TKD = scores_TK.unsqueeze(-1) * dy_TD.float().unsqueeze(1)
    return scaled_TKD.to(dy_TD.dtype).view(-1, dy_TD.shape[-1])


def scores_gradient(routed_SD: Tensor, dy_TD: Tensor, topk: int) -> Tensor:
    """Gradient of the scores, [T, K]: the product of each routed row with dy of its token."""
    return torch.einsum("tkd,td->tk", routed_SD.view(dy_TD.shape[0], topk, -1).float(), dy_TD.float())


def sum_of_rows(rows_SD: Tensor, topk: int, shared_TD: Tensor | None) -> Tensor:
    """Gradient of x from the gradients of its K rows, [T, D], plus the shared expert's."""
    dx_TD = rows_SD.view(-1, topk, rows_SD.shape[-1]).float().sum(dim=1)
    if shared_TD is not None:
        dx_TD = dx_TD + shared_TD.float()
    return dx_TD.to(rows_SD.dtype)
