"""The GPUs of this machine as NVML sees them, or nvidia-smi where nvidia-ml-py is missing."""

import subprocess
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moebench.rank.counters_nvml import (
    NvlinkCounter,
    NvmlRefused,
    active_links,
    ask,
    ask_if_known,
    is_divided,
    link_count,
    load_nvml,
)

MIB = 2**20


class Gpu(BaseModel):
    """None: the GPU, or the way in which it was asked, does not say."""

    model_config = ConfigDict(frozen=True)
    index: int = Field(description="of NVML, which is not always that of CUDA")
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    compute_capability: str | None = None
    mig: bool = Field(default=False, description="divided by MIG")
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = Field(default=None, description="NVML clock event bits, now")
    pcie_generation: int | None = Field(default=None, description="now: an idle link may slow down")
    pcie_lanes: int | None = None
    nvlinks: int | None = Field(default=None, description="links that it has")
    nvlinks_up: int | None = None
    nvlink_counters: str | None = Field(default=None, description="why they cannot be read; none: they can")


class Gpus(BaseModel):
    model_config = ConfigDict(frozen=True)
    driver: str | None = None
    cuda: str | None = Field(default=None, description="newest CUDA that the driver runs")
    source: str = Field(description="nvml, nvidia-smi or none")
    why_no_nvml: str | None = None
    gpus: list[Gpu] = []


def examine_gpus(load: Callable[[], Any] = load_nvml) -> Gpus:
    """All GPUs of the host, also those that CUDA_VISIBLE_DEVICES hides."""
    try:
        nvml = load()
        count = int(ask(nvml.nvmlDeviceGetCount))
    except NvmlRefused as refused:
        return _by_nvidia_smi(str(refused))
    cuda = ask_if_known(nvml, "nvmlSystemGetCudaDriverVersion")
    return Gpus(
        driver=ask_if_known(nvml, "nvmlSystemGetDriverVersion"),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        source="nvml",
        gpus=[_gpu(nvml, index) for index in range(count)],
    )


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
    except NvmlRefused as refused:
        return Gpu(index=index, name=f"cannot be opened ({refused})")

    def get(name: str, *arguments: Any) -> Any:
        return ask_if_known(nvml, name, handle, *arguments)

    sm, memory_clock = getattr(nvml, "NVML_CLOCK_SM", 1), getattr(nvml, "NVML_CLOCK_MEM", 2)
    memory, capability = get("nvmlDeviceGetMemoryInfo"), get("nvmlDeviceGetCudaComputeCapability")
    reasons = get("nvmlDeviceGetCurrentClocksEventReasons")
    return Gpu(
        index=index,
        name=get("nvmlDeviceGetName") or "unnamed",
        uuid=get("nvmlDeviceGetUUID"),
        memory_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        mig=is_divided(nvml, handle),
        sm_clock_mhz=get("nvmlDeviceGetClockInfo", sm),
        sm_clock_max_mhz=get("nvmlDeviceGetMaxClockInfo", sm),
        memory_clock_mhz=get("nvmlDeviceGetClockInfo", memory_clock),
        power_w=_watts(get("nvmlDeviceGetPowerUsage")),
        power_limit_w=_watts(get("nvmlDeviceGetEnforcedPowerLimit")),
        power_default_w=_watts(get("nvmlDeviceGetPowerManagementDefaultLimit")),
        temperature_c=get("nvmlDeviceGetTemperature", getattr(nvml, "NVML_TEMPERATURE_GPU", 0)),
        throttle_reasons=get("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons,
        pcie_generation=get("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_lanes=get("nvmlDeviceGetCurrPcieLinkWidth"),
        nvlinks=link_count(nvml, handle),
        nvlinks_up=len(active_links(nvml, handle)),
        nvlink_counters=_why_no_counters(nvml, handle),
    )


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def _why_no_counters(nvml: Any, handle: Any) -> str | None:
    try:
        NvlinkCounter(nvml, handle)
    except NvmlRefused as refused:
        return str(refused)
    return None


def _by_nvidia_smi(why_no_nvml: str) -> Gpus:
    keys = "index,name,uuid,driver_version,memory.total,memory.free"
    query = ["nvidia-smi", f"--query-gpu={keys}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
        gpus = [
            Gpu(
                index=int(index),
                name=name,
                uuid=uuid,
                memory_bytes=_mib(total),
                free_bytes=_mib(free),
            )
            for index, name, uuid, _, total, free in rows
        ]
    except (OSError, ValueError, subprocess.SubprocessError):
        return Gpus(source="none", why_no_nvml=why_no_nvml)
    if not gpus:
        return Gpus(source="none", why_no_nvml=why_no_nvml)
    return Gpus(driver=rows[0][3], source="nvidia-smi", why_no_nvml=why_no_nvml, gpus=gpus)


def _mib(text: str) -> int | None:
    return int(text) * MIB if text.isdigit() else None
