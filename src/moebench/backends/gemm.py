"""Matrix products of BF16 operands with FP32 accumulation and one rounding to BF16 at the end.

Grouped products take rows sorted by expert and `ends_e`, the end row of each expert (int32, inclusive scan of
counts); rows past the last end are undefined. On CUDA they are one grouped GEMM kernel and read nothing back to
the host. On CPU each expert is one FP32 product: BF16 products without AMX run some forty times slower there.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 48
"""Mean rows of an expert up to which a product is all reading of weights, for which a kernel of our own reads them
at 4.4 TB/s on an H200, where the grouped GEMM reaches 3.4."""


def linear(x_RI: Tensor, w_OI: Tensor) -> Tensor:
    """x @ w^T, [R, O]."""
    if x_RI.is_cuda:
        return F.linear(x_RI, w_OI)
    return F.linear(x_RI.float(), w_OI.float()).to(x_RI.dtype)


def matmul(x_RO: Tensor, w_OI: Tensor) -> Tensor:
    """x @ w, [R, I]."""
    if x_RO.is_cuda:
        return x_RO @ w_OI
    return (x_RO.float() @ w_OI.float()).to(x_RO.dtype)


def outer(g_RO: Tensor, x_RI: Tensor) -> Tensor:
    """g^T @ x, [O, I]."""
    if g_RO.is_cuda:
        return g_RO.t() @ x_RI
    return (g_RO.float().t() @ x_RI.float()).to(g_RO.dtype)


def grouped_linear(x_RI: Tensor, w_eOI: Tensor, ends_e: Tensor) -> Tensor:
    """Rows of expert e times w[e]^T, [R, O]."""
    if x_RI.is_cuda and x_RI.shape[0] <= FEW_ROWS * w_eOI.shape[0]:
        from moebench.backends import triton_kernels

        return triton_kernels.stream_linear(x_RI, w_eOI, ends_e)
    return grouped_matmul(x_RI, w_eOI.transpose(1, 2), ends_e)


def grouped_matmul(x_RI: Tensor, w_eIO: Tensor, ends_e: Tensor) -> Tensor:
    """Rows of expert e times w[e], [R, O]."""
    if x_RI.is_cuda:
        return F.grouped_mm(x_RI, w_eIO, offs=ends_e)
    out = x_RI.new_empty(x_RI.shape[0], w_eIO.shape[2])
    for expert, (start, end) in enumerate(_segments(ends_e)):
        if end > start:
            out[start:end] = (x_RI[start:end].float() @ w_eIO[expert].float()).to(x_RI.dtype)
    return out


def grouped_outer(g_RO: Tensor, x_RI: Tensor, ends_e: Tensor) -> Tensor:
    """Rows of expert e: g^T @ x, [e, O, I]; zero for an expert without rows."""
    if g_RO.is_cuda:
        return F.grouped_mm(g_RO.t(), x_RI, offs=ends_e)
    out = g_RO.new_zeros(len(ends_e), g_RO.shape[1], x_RI.shape[1])
    for expert, (start, end) in enumerate(_segments(ends_e)):
        if end > start:
            out[expert] = (g_RO[start:end].float().t() @ x_RI[start:end].float()).to(g_RO.dtype)
    return out


def _segments(ends_e: Tensor) -> list[tuple[int, int]]:
    ends = ends_e.tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def ends_of(counts_e: Tensor) -> Tensor:
    """Inclusive scan of rows per expert, int32, as grouped products want it."""
    return torch.cumsum(counts_e, 0).to(torch.int32)
