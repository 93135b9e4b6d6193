"""What this rank ran on: recorded with every trace, since a number without it cannot be compared."""

import os
import platform
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moebench import __version__
from moebench.cases.machine import processor


def environment(device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {
        "moebench": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device.type,
        "hardware": hardware(device),
        "host": platform.node(),
        "collectives": dist.get_backend(),
        "threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        found["device_index"] = device.index
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpus_visible"] = torch.cuda.device_count()
        found["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        found["bf16_reduced_precision_reduction"] = bool(
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        )
    return found


def hardware(device: torch.device) -> str:
    """The GPU's name, or the processor's."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return processor(Path("/"))
