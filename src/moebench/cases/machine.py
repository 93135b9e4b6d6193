"""What the machine at hand offers: cores, memory that is free now, GPUs. Needs no torch."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

MIB = 2**20

CPU_PROCESS_BYTES = 400 * MIB
"""A rank's Python with CPU torch loaded, rounded up (about 230 MiB are resident before any work)."""
GPU_PROCESS_BYTES = 600 * MIB
"""A rank's CUDA context and communicator on its GPU. An assumption."""


@dataclass(frozen=True)
class Machine:
    """One host. Ranks run on its GPUs, several on one where there are too few; without any on its CPU."""

    cores: int
    available_bytes: int
    """Host memory that can be used without swapping, for all ranks together."""
    gpu_bytes: tuple[int, ...] = ()
    """Memory of each visible GPU."""
    processor: str = ""
    gpu_names: tuple[str, ...] = ()
    """Name and driver of each visible GPU."""

    def process_bytes(self) -> int:
        """Bytes that a rank's process takes where its tensors live, before any work."""
        return GPU_PROCESS_BYTES if self.gpu_bytes else CPU_PROCESS_BYTES


def this_machine() -> Machine:
    """The machine this runs on, as it is now."""
    root, gpus = Path("/"), _gpus()
    return Machine(
        cores=usable_cores(root),
        available_bytes=available_bytes(root),
        gpu_bytes=tuple(size for size, _ in gpus),
        processor=processor(root),
        gpu_names=tuple(name for _, name in gpus),
    )


def processor(root: Path) -> str:
    """The processor's name, as well as the system tells it. `root` stands for /."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_bytes(root: Path) -> int:
    """The least of what the kernel calls available and what the memory cgroups above this process leave.

    `root` stands for /. Without /proc (macOS) it is the installed memory.
    """
    left = [_cgroup_left_bytes(folder) for folder in _cgroup_folders(root, "memory")]
    meminfo = _read(root / "proc/meminfo")
    for line in (meminfo or "").splitlines():
        if line.startswith("MemAvailable:"):
            left.append(int(line.split()[1]) * 1024)
    known = [amount for amount in left if amount is not None]
    return max(0, min(known)) if known else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_cores(root: Path) -> int:
    """Cores that this process may use: its affinity, or its CPU quota where that is less; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _cpu_quota(folder)
        if quota is not None and period:
            cores = min(cores, quota // period)
    return max(1, cores)


def _cpu_quota(folder: Path) -> tuple[int | None, int | None]:
    """Microseconds of CPU time per period (v2: cpu.max, v1: cfs files); None where there is no limit."""
    both = (_read(folder / "cpu.max") or "").split()
    if len(both) == 2:
        return _number(both[0]), _number(both[1])
    return _number(_read(folder / "cpu.cfs_quota_us")), _number(_read(folder / "cpu.cfs_period_us"))


def _cgroup_left_bytes(folder: Path) -> int | None:
    """Limit minus use of one memory cgroup, page cache that can be dropped not counted as used."""
    limit = _number(_read(folder / "memory.max")) or _number(_read(folder / "memory.limit_in_bytes"))
    used = _number(_read(folder / "memory.current")) or _number(_read(folder / "memory.usage_in_bytes"))
    if limit is None or used is None:
        return None
    counters = dict(line.split() for line in (_read(folder / "memory.stat") or "").splitlines())
    cache = int(counters.get("total_inactive_file", counters.get("inactive_file", 0)))
    return limit - used + cache


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of the cgroups that limit this process, from its own up to the root; v1 and v2.

    In a container the path in /proc/self/cgroup may be the host's; then only the mount point exists.
    """
    folders = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        own = mount / path.lstrip("/")
        folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(mount)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    """A count from a kernel file; None for `max`, -1, an empty or a missing file."""
    text = (text or "").strip()
    return int(text) if text.isdigit() else None


def _gpus() -> list[tuple[int, str]]:
    """Memory, and name with driver, of each visible NVIDIA GPU; empty without a driver or a GPU."""
    found = _gpus_by_nvml() or _gpus_by_nvidia_smi()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else found[: len([name for name in visible.split(",") if name.strip()])]


def _gpus_by_nvml() -> list[tuple[int, str]]:
    try:
        nvml = import_module("pynvml")  # the module of nvidia-ml-py
        nvml.nvmlInit()
    except Exception:  # NVML has many ways to be absent, and none of them is the user's mistake.
        return []
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [
            (int(nvml.nvmlDeviceGetMemoryInfo(handle).total), f"{nvml.nvmlDeviceGetName(handle)}, driver {driver}")
            for handle in handles
        ]
    finally:
        nvml.nvmlShutdown()


def _gpus_by_nvidia_smi() -> list[tuple[int, str]]:
    query = ["nvidia-smi", "--query-gpu=memory.total,driver_version,name", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        rows = [[part.strip() for part in line.split(",", 2)] for line in answer.splitlines() if line.strip()]
        return [(int(size) * MIB, f"{name}, driver {driver}") for size, driver, name in rows]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
