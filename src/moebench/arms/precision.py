"""bf16 autocast on GPUs, fp32 on CPUs, for both arms."""

from contextlib import AbstractContextManager

import torch


def autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
