"""SwiGLU, computed in FP32 and rounded once: h = silu(gate) * up, gate the first half of G, up the last."""

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(h13_RG: Tensor) -> Tensor:
    """[R, 2F] -> [R, F]."""
    gate_RF, up_RF = h13_RG.float().chunk(2, dim=-1)
    return (F.silu(gate_RF) * up_RF).to(h13_RG.dtype)


def swiglu_backward(dh_RF: Tensor, h13_RG: Tensor) -> Tensor:
    """Gradient of gate and up, [R, 2F], from the gradient of h and the saved gate and up."""
    gate_RF, up_RF = h13_RG.float().chunk(2, dim=-1)
    dh = dh_RF.float()
    sigmoid_RF = torch.sigmoid(gate_RF)
    dgate_RF = dh * up_RF * sigmoid_RF * (1 + gate_RF * (1 - sigmoid_RF))
    dup_RF = dh * gate_RF * sigmoid_RF
    return torch.cat([dgate_RF, dup_RF], dim=-1).to(h13_RG.dtype)
