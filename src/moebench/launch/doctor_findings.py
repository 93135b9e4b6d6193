"""What the doctor makes of the facts: what to cure, how, and whether moebench can measure without."""

from collections.abc import Iterator

from moebench.launch.doctor import BackendState, Finding, Torch
from moebench.launch.doctor_collective import CollectiveTest
from moebench.launch.doctor_gpus import Gpu, Gpus
from moebench.launch.doctor_host import Host

MIB, GIB = 2**20, 2**30
LEAST_MEMORY_BYTES = GIB
"""Two ranks' Python and torch, and quick.toml."""
LEAST_SHM_BYTES = GIB
LEAST_DISK_BYTES = 100 * MIB
LEAST_OPEN_FILES = 1024
LEAST_PROCESSES = 1024
BUSY_SHARE = 0.5
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML clock event bits of hardware slowdown, heat and power brake, for which a case would be rejected."""
CLOCKS_SET = 0x2


def findings(
    host: Host, torch: Torch, gpus: Gpus, backends: list[BackendState], collectives: CollectiveTest
) -> list[Finding]:
    """What stops comes first."""
    found = [*_of_torch(torch, gpus), *_of_collectives(collectives), *_of_host(host), *_of_gpus(gpus)]
    if backends and all(backend.missing for backend in backends):
        found.append(Finding(stops=True, what="no backend can run here", remedy="see the reasons above"))
    return sorted(found, key=lambda finding: not finding.stops)


def _of_torch(torch: Torch, gpus: Gpus) -> Iterator[Finding]:
    if torch.error is not None:
        yield Finding(
            stops=True,
            what=f"torch cannot be imported: {torch.error}",
            remedy="install it again: https://pytorch.org/get-started",
        )
    elif gpus.gpus and torch.cuda is None:
        yield Finding(
            stops=True,
            what=f"torch {torch.version} is a CPU build, so the {len(gpus.gpus)} GPU(s) cannot be measured",
            remedy="install a CUDA build of torch: https://pytorch.org/get-started",
        )
    elif gpus.gpus and torch.gpus == 0:
        yield Finding(
            stops=True,
            what=f"torch {torch.version} (CUDA {torch.cuda}) cannot use a GPU; the driver is {gpus.driver}",
            remedy="check CUDA_VISIBLE_DEVICES, the container's --gpus flag, and that the driver runs this CUDA",
        )


def _of_collectives(test: CollectiveTest) -> Iterator[Finding]:
    if not test.passed:
        where = f"{test.ranks} ranks over {test.collectives}"
        yield Finding(
            stops=True,
            what=f"the collective test of {where} failed: {test.error}",
            remedy="run again with NCCL_DEBUG=WARN" if test.collectives == "nccl" else "check loopback and free memory",
        )


def _of_host(host: Host) -> Iterator[Finding]:
    limits = host.limits
    if host.loopback is None:
        yield Finding(
            stops=True, what="nothing can connect over 127.0.0.1", remedy="bring the interface up: ip link set lo up"
        )
    if not host.folder_writable:
        yield Finding(
            stops=True, what=f"{host.folder} cannot be written to", remedy="start moebench in a folder of yours"
        )
    if host.disk_free_bytes is not None and host.disk_free_bytes < LEAST_DISK_BYTES:
        free = _size(host.disk_free_bytes)
        yield Finding(stops=True, what=f"{free} of disk are free in {host.folder}", remedy="free 100 MiB or more")
    if host.available_bytes is not None and host.available_bytes < LEAST_MEMORY_BYTES:
        yield Finding(
            stops=True,
            what=f"{_size(host.available_bytes)} of memory are available, a sweep of two ranks needs 1 GiB",
            remedy="end other programs, or give the container more memory",
        )
    if host.shared_memory_bytes is not None and host.shared_memory_bytes < LEAST_SHM_BYTES:
        yield Finding(
            stops=False,
            what=f"/dev/shm is {_size(host.shared_memory_bytes)}; NCCL needs more between many ranks",
            remedy="run the container with --shm-size=8g",
        )
    if limits is not None and limits.open_files is not None and limits.open_files < LEAST_OPEN_FILES:
        yield Finding(stops=False, what=f"at most {limits.open_files} open files are allowed", remedy="ulimit -n 65536")
    if limits is not None and limits.processes is not None and limits.processes < LEAST_PROCESSES:
        yield Finding(stops=False, what=f"at most {limits.processes} processes are allowed", remedy="ulimit -u 65536")
    if host.infiniband and limits is not None and limits.locked_memory_bytes is not None:
        yield Finding(
            stops=False,
            what=f"at most {_size(limits.locked_memory_bytes)} can be locked, and InfiniBand locks its buffers",
            remedy="ulimit -l unlimited, or run the container with --ulimit memlock=-1",
        )
    if host.load is not None and host.cores and host.load > BUSY_SHARE * host.cores:
        yield Finding(
            stops=False,
            what=f"the machine is busy: load {host.load:.1f} on {host.cores} cores, so times will scatter",
            remedy="measure when it is idle",
        )


def _of_gpus(gpus: Gpus) -> Iterator[Finding]:
    if gpus.source == "nvidia-smi":
        yield Finding(
            stops=False,
            what=f"no NVLink counters, clocks or throttle reasons: {gpus.why_no_nvml}",
            remedy="pip install 'moebench[gpu]'",
        )
    for gpu in gpus.gpus:
        yield from _of_gpu(gpu)


def _of_gpu(gpu: Gpu) -> Iterator[Finding]:
    name = f"GPU {gpu.index}"
    if gpu.mig:
        yield Finding(
            stops=False,
            what=f"{name} is divided by MIG: NVLink is off, and other users' work slows yours",
            remedy="measure on a whole GPU (nvidia-smi -mig 0)",
        )
    if gpu.throttle_reasons is not None and gpu.throttle_reasons & SLOWED:
        yield Finding(
            stops=False,
            what=f"{name} is slowed by its hardware or heat now (NVML bits {gpu.throttle_reasons & SLOWED:#x})",
            remedy="check its cooling and power; cases measured so are rejected",
        )
    if gpu.throttle_reasons is not None and gpu.throttle_reasons & CLOCKS_SET:
        yield Finding(
            stops=False,
            what=f"the clocks of {name} were set by hand",
            remedy="nvidia-smi -rac and -rgc give it back its own, if that was not meant",
        )
    if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < gpu.power_default_w:
        yield Finding(
            stops=False,
            what=f"{name} is capped at {gpu.power_limit_w:.0f} W, its default is {gpu.power_default_w:.0f} W",
            remedy="compare only with figures at the same cap",
        )
    if gpu.free_bytes is not None and gpu.memory_bytes and gpu.free_bytes < 0.9 * gpu.memory_bytes:
        yield Finding(
            stops=False,
            what=f"{_size(gpu.free_bytes)} of {_size(gpu.memory_bytes)} are free on {name}: somebody uses it",
            remedy="nvidia-smi shows who; measure alone",
        )
    if gpu.nvlinks_up and gpu.nvlink_counters is not None:
        yield Finding(
            stops=False,
            what=f"the NVLink counters of {name} cannot be read: {gpu.nvlink_counters}",
            remedy="traffic is counted at the collectives instead (trafficSource transport)",
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"
