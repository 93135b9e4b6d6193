"""What the real mok needs of a machine and of a case, told without importing it: importing it loads a CUDA extension,
which may happen only after this rank has taken its GPU.

Source: mok's README and the checks of its functional layer; the bound on K is the shared memory of its epilogue.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from moebench.backends.mok.capacity import retained_rows
from moebench.cases.case import PIPELINES, Case

PAD_ROWS = 256
"""mok pads the rows of every expert to this; it is a constant of its scheduler."""

EP_SIZES = (1, 4, 8, 16, 32, 64)
"""1 only in generations that recompute forward contexts."""

CAPABILITIES = ((10, 0), (10, 3))
MOST_EXPERTS_PER_TOKEN = 55
"""The most K for which the epilogue's 2*((K+1)*2048 + 4*K) + 1024 bytes fit the 227 KiB of shared memory."""

BUILD_HINT = "build it from source: MOK_ARCH=SM100 or SM103 pip install . --no-build-isolation"


def what_is_missing() -> str | None:
    """All that this machine lacks to import and run mok, or None."""
    return "; ".join([*_missing_package(), *_missing_software(), *_missing_gpu()]) or None


def _missing_package() -> Iterator[str]:
    spec = importlib.util.find_spec("mok")
    if spec is None or spec.origin is None:
        yield f"the package mok (Mixture-of-Kittens) is not installed; {BUILD_HINT}"
        return
    folder = Path(spec.origin).parent
    if not any(folder.glob("_C*")):
        yield f"the package mok in {folder} has no compiled extension _C; {BUILD_HINT}"


def _missing_software() -> Iterator[str]:
    if sys.version_info < (3, 12):
        yield f"Python {sys.version_info.major}.{sys.version_info.minor} found, 3.12 needed"
    if _numbers(torch.__version__) < (2, 10):
        yield f"torch {torch.__version__} found, 2.10 needed"
    cuda = torch.version.cuda
    if cuda is None:
        yield f"torch {torch.__version__} is built without CUDA, CUDA 13.0 needed"
    elif _numbers(cuda) < (13, 0):
        yield f"torch {torch.__version__} is built for CUDA {cuda}, 13.0 needed"


def _missing_gpu() -> Iterator[str]:
    if not torch.cuda.is_available():
        yield "no CUDA GPU found, compute capability 10.0 or 10.3 needed"
        return
    found = torch.cuda.get_device_capability()
    if found not in CAPABILITIES:
        yield f"compute capability {found[0]}.{found[1]} found, 10.0 or 10.3 needed"


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def why_case_exceeds_limits(case: Case) -> str | None:
    """The first hard limit of mok, of any generation, that a case breaks, or None."""
    s, c, retained = case.shape, case.capacity, retained_rows(case)
    rules = [
        (case.precision in PIPELINES["mok"], f"mok has no precision {case.precision}"),
        (case.ep in EP_SIZES, f"mok runs on 4, 8, 16, 32 or 64 ranks, some versions also on 1, not on ep={case.ep}"),
        (s.T >= 512 and s.T % 256 == 0, f"mok needs T, tokens per rank, of 512 or more in multiples of 256, not {s.T}"),
        (s.D % 256 == 0, f"mok needs D in multiples of 256, not {s.D}"),
        (s.F % 256 == 0, f"mok needs F in multiples of 256, not {s.F}"),
        (s.K <= MOST_EXPERTS_PER_TOKEN, f"mok's combine holds K={MOST_EXPERTS_PER_TOKEN} experts at most, not {s.K}"),
        (s.S == 1, f"mok computes exactly one shared expert, which cannot be switched off: S={s.S}"),
        (c.pad_rows == PAD_ROWS, f"mok always pads experts to {PAD_ROWS} rows: pad_rows={c.pad_rows} cannot be had"),
        (c.minibatch_rows % 256 == 0, f"mok needs minibatch_rows in multiples of 256, not {c.minibatch_rows}"),
        (
            retained % c.minibatch_rows == 0,
            f"mok needs macrobatches of whole minibatches: {retained} rows are no multiple of {c.minibatch_rows}",
        ),
    ]
    return next((reason for holds, reason in rules if not holds), None)


def why_launch_does_not_fit(case: Case) -> str | None:
    """What about the ranks as they were started forbids mok, or None. To be asked in a rank."""
    if dist.is_initialized() and dist.get_backend() != "nccl":
        return (
            f"this launch's ranks talk by {dist.get_backend()}, as they do on CPU or when several share a GPU; "
            "mok needs NCCL and a GPU for each rank"
        )
    if case.ep > 1 and not _has_multicast():
        return "this GPU has no NVLink multicast (NVLS), through which mok gathers the routing"
    return None


def current_gpu() -> torch.device:
    """The GPU that this rank has taken."""
    return torch.device("cuda", torch.cuda.current_device())


def _has_multicast() -> bool:
    """True also where torch cannot tell: then the workspace's pointers are looked at."""
    try:
        from torch._C._distributed_c10d import _SymmetricMemory

        device = torch.cuda.current_device()
        return bool(_SymmetricMemory.has_multicast_support(torch._C._autograd.DeviceType.CUDA, device))
    except (ImportError, AttributeError):
        return True
