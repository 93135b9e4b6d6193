"""Which GPU a rank takes, and whether ranks share one."""

import platform
from collections import Counter
from pathlib import Path

import torch
from torch.distributed.distributed_c10d import Store

from moebench.rank.counters_nvml import GpuAddress


def gpu_index(local_rank: int, visible_gpus: int) -> int:
    """The CUDA device of a rank among those that its process sees.

    Where each process sees only its own GPU, that is device 0 whatever the local rank; where there are more ranks
    than GPUs, they are shared out in turn. Raises RuntimeError where the process sees none.
    """
    if visible_gpus < 1:
        raise RuntimeError("this rank sees no GPU. Is CUDA_VISIBLE_DEVICES right, and is this torch built for CUDA?")
    return local_rank % visible_gpus


def most_ranks_on_one_gpu(gpu_of_rank: list[str]) -> int:
    """From a name of each rank's GPU that no other GPU of any host has."""
    return max(Counter(gpu_of_rank).values())


def collectives(most_on_one_gpu: int) -> str:
    """NCCL refuses two ranks on one GPU; gloo takes them through host memory."""
    return "nccl" if most_on_one_gpu == 1 else "gloo"


def address_of(device: torch.device) -> GpuAddress:
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)
    domain, bus, slot = (getattr(properties, name, 0) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id"))
    return GpuAddress(None if uuid is None else str(uuid), f"{domain:08X}:{bus:02X}:{slot:02X}.0")


def tell_gpus(store: Store, rank: int, ranks: int, device: torch.device) -> list[str]:
    """A name of each rank's GPU, from every rank through the store: host, its boot, PCI bus id."""
    mine = f"{platform.node()} {_boot_id()} {address_of(device).pci_bus_id}"
    store.set(f"moebench/gpu/{rank}", mine)
    return [store.get(f"moebench/gpu/{other}").decode() for other in range(ranks)]


def _boot_id() -> str:
    """Tells hosts apart whose names are equal, as those of containers can be."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
