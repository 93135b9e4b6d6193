"""SwiGLU, computed in FP32 and rounded once: h = silu(gate) * up, gate the first half of G, up the last."""

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(h13_RG: Tensor) -> Tensor:
    """[R, 2F] -> [R, F]."""
    if h13_RG.is_cuda:
        from moebench.backends import triton_kernels

        return triton_kernels.swiglu(h13_RG)
    gate_RF, up_RF = h13_RG.float().chunk(2, dim=-1)
    return (F.silu(gate_RF) * up_RF).to(h13_RG.dtype)


def swiglu_backward(dh_RF: Tensor, h13_RG: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient of gate and up, [R, 2F], from the gradient of h and the saved gate and up; and h again, [R, F]."""
    if dh_RF.is_cuda:
        from moebench.backends import triton_kernels

        return triton_kernels.swiglu_backward(dh_RF, h13_RG)
    gate_RF, up_RF = h13_RG.float().chunk(2, dim=-1)
    dh = dh_RF.float()
    sigmoid_RF = torch.sigmoid(gate_RF)
    silu_RF = gate_RF * sigmoid_RF
    dgate_RF = dh * up_RF * (sigmoid_RF + silu_RF * (1 - sigmoid_RF))
    dh13_RG = torch.cat([dgate_RF, dh * silu_RF], dim=-1).to(h13_RG.dtype)
    return dh13_RG, (silu_RF * up_RF).to(h13_RG.dtype)
