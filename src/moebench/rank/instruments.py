"""What is read beside the timed region on a GPU. On CPU there is nothing to read, and nothing is started."""

from typing import Any

import torch

from moebench.rank.counters_infiniband import infiniband_bytes
from moebench.rank.counters_nvml import NvlinkCounter, NvmlRefused, ask_if_known, find_gpu, load_nvml
from moebench.rank.placement import address_of
from moebench.rank.sampler import Sampler, command, summary
from moebench.rank.trace import Window


class Instruments:
    """The counters and the sampler of one rank, for all cases of a launch.

    This class has none: it is what CPU ranks use. `nvlink` counts the rank's own GPU; `about` goes into the
    environment of every trace.
    """

    nvlink: NvlinkCounter | None = None

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}

    def begin(self) -> None:
        """Before the first window of a case, or of cases that are timed together."""

    def end(self, *windows: list[Window]) -> list[dict[str, Any]]:
        """After the last window: what to add to the environment of each case, told by its windows."""
        return [{} for _ in windows]

    def close(self) -> None: ...


class GpuInstruments(Instruments):
    def __init__(self, device: torch.device, gpu_shared_by: int) -> None:
        super().__init__()
        address = address_of(device)
        self.about = {"gpu_shared_by": gpu_shared_by, "gpu_pci_bus_id": address.pci_bus_id}
        self._sampler: Sampler | None = None
        try:
            nvml = load_nvml()
            handle = find_gpu(nvml, address)
        except NvmlRefused as refused:
            self.about["nvml"] = str(refused)
            return
        self.about |= _standing(nvml, handle)
        self._sampler = Sampler(command(address))
        try:
            if gpu_shared_by > 1:
                raise NvmlRefused("several ranks share the GPU, and its counters do not tell them apart")
            self.nvlink = NvlinkCounter(nvml, handle)
            self.about["nvlink"] = f"{len(self.nvlink.links)} links up"
        except NvmlRefused as refused:
            self.about["nvlink"] = str(refused)

    def begin(self) -> None:
        self._links_before = self.nvlink.read_links() if self.nvlink else None
        self._infiniband_before = infiniband_bytes()
        if self._sampler is not None:
            self._sampler.begin()

    def end(self, *windows: list[Window]) -> list[dict[str, Any]]:
        samples = self._sampler.end() if self._sampler is not None else None
        seen: list[dict[str, Any]] = [{} for _ in windows]
        if self._sampler is not None:
            seen = [{"samples": 0} if samples is None else summary(samples, mine) for mine in windows]
        if len(windows) == 1:
            seen[0] |= self._counted()
        return seen

    def _counted(self) -> dict[str, Any]:
        """What the counters say of all windows and of the time between them: of one case, or of nobody's."""
        found: dict[str, Any] = {}
        links = self.nvlink.read_links() if self.nvlink else None
        if links is not None and self._links_before is not None:
            moved = _moved(self._links_before, links)
            found["nvlink_tx_bytes_by_link"], found["nvlink_rx_bytes_by_link"] = map(list, zip(*moved, strict=True))
        found |= _over_infiniband(self._infiniband_before, infiniband_bytes())
        return found

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


def _standing(nvml: Any, handle: Any) -> dict[str, Any]:
    """What does not change while cases run."""
    milliwatts = ask_if_known(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    standing = {
        "driver": ask_if_known(nvml, "nvmlSystemGetDriverVersion"),
        "gpu_uuid": ask_if_known(nvml, "nvmlDeviceGetUUID", handle),
        "power_limit_w": None if milliwatts is None else milliwatts / 1e3,
    }
    return {key: value for key, value in standing.items() if value is not None}


def _moved(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(tx - tx0, rx - rx0) for (tx0, rx0), (tx, rx) in zip(before, after, strict=True)]


def _over_infiniband(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """Bytes of the host's ports over all windows and between them; nothing without InfiniBand."""
    ports = sorted(before.keys() & after.keys())
    if not ports:
        return {}
    return {
        "infiniband_host_tx_bytes": sum(after[port][0] - before[port][0] for port in ports),
        "infiniband_host_rx_bytes": sum(after[port][1] - before[port][1] for port in ports),
        "infiniband_ports": ports,
    }
