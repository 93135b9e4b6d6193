"""What this machine lacks to run the real dist_moe, told from installed metadata and the driver: nothing of the
library is imported."""

import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGE = "dist-moe"
KERNEL_PACKAGES = ("triton", "nvidia-cutlass-dsl", "cuda-python", "apache-tvm-ffi")
"""What its kernels are compiled with. It imports without them, and fails at the first layer."""


@dataclass(frozen=True)
class Found:
    """What of the library's requirements this machine has. Source: the metadata of dist-moe 0.1.0."""

    system: str
    python: tuple[int, int]
    packages: Mapping[str, str]
    """Versions of those of the packages that are installed."""
    torch: str
    torch_cuda: str | None
    """The CUDA that torch is built for; None in a CPU build."""
    gpu: str | None
    capability: tuple[int, int] | None


def found_here() -> Found:
    """This process's interpreter, packages and current CUDA device."""
    gpu = torch.cuda.is_available()
    return Found(
        system=platform.system(),
        python=sys.version_info[:2],
        packages={name: there for name in (PACKAGE, *KERNEL_PACKAGES) if (there := installed(name)) is not None},
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        gpu=torch.cuda.get_device_name() if gpu else None,
        capability=torch.cuda.get_device_capability() if gpu else None,
    )


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def what_is_missing(found: Found) -> str | None:
    """Everything that is missing in one line, each with what was found and what is needed; None if nothing is."""
    reasons = [*_software(found), *_hardware(found)]
    return "; ".join(reasons) if reasons else None


def _software(found: Found) -> list[str]:
    reasons = []
    if found.system != "Linux":
        reasons.append(f"{found.system} found, Linux needed")
    if not (3, 11) <= found.python < (3, 13):
        reasons.append(f"Python {found.python[0]}.{found.python[1]} found, 3.11 or 3.12 needed")
    if PACKAGE not in found.packages:
        reasons.append(f"package {PACKAGE} not installed (pip install {PACKAGE})")
    elif absent := [name for name in KERNEL_PACKAGES if name not in found.packages]:
        reasons.append(f"{PACKAGE} is installed without {', '.join(absent)}")
    numbers = re.match(r"(\d+)\.(\d+)", found.torch)
    if numbers is None or tuple(map(int, numbers.groups())) < (2, 14):
        reasons.append(f"torch {found.torch} found, 2.14 or newer needed")
    return reasons


def _hardware(found: Found) -> list[str]:
    if found.capability is None:
        why = "torch is a build without CUDA" if found.torch_cuda is None else "no CUDA device found"
        return [f"{why}, compute capability 10.0 (Blackwell) needed"]
    major, minor = found.capability
    if major == 10:
        return []
    return [f"compute capability {major}.{minor} found ({found.gpu}), 10.0 (Blackwell) needed"]
