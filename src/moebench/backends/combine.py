"""The weighted sum that ends a layer, in FP32, k ascending, rounded once."""

from torch import Tensor


def combine(routed_TKD: Tensor, scores_TK: Tensor, shared_TD: Tensor | None) -> Tensor:
    """y_TD = shared + sum over k of score * routed row."""
    y_TD = (routed_TKD.float() * scores_TK.unsqueeze(-1)).sum(dim=1)
    if shared_TD is not None:
        y_TD = y_TD + shared_TD.float()
    return y_TD.to(routed_TKD.dtype)
