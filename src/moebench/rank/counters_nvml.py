"""NVML: the driver's own counters and sensors of one GPU. Needs nvidia-ml-py (extra `gpu`), and never torch.

Everything here answers None, or raises NvmlRefused, where the package, the driver or the GPU does not offer it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

KIB = 1024
ALL_LINKS = 0xFFFFFFFF
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of NVML's value union, in the order of its type numbers."""


class NvmlRefused(Exception):
    """NVML, or this GPU, does not answer the question."""


@cache
def load_nvml() -> Any:
    """The module pynvml, initialised for the life of the process. Raises NvmlRefused, saying what is missing."""
    try:
        nvml = import_module("pynvml")
    except ImportError as error:
        raise NvmlRefused("the Python package nvidia-ml-py is not installed") from error
    except Exception as error:
        raise NvmlRefused(f"nvidia-ml-py cannot be loaded: {error}") from error
    ask(nvml.nvmlInit)
    return nvml


def ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """An answer of NVML. Raises NvmlRefused: drivers and bindings of other ages fail in many ways."""
    try:
        return question(*arguments)
    except Exception as error:
        raise NvmlRefused(f"{getattr(question, '__name__', 'NVML')}: {error}") from error


def ask_if_known(nvml: Any, name: str, *arguments: Any) -> Any:
    """An answer of NVML, or None where this binding or this GPU has none."""
    question = getattr(nvml, name, None)
    if question is None:
        return None
    try:
        return ask(question, *arguments)
    except NvmlRefused:
        return None


@dataclass(frozen=True)
class GpuAddress:
    """A GPU as CUDA names it whatever CUDA_VISIBLE_DEVICES says: an index of CUDA is not one of NVML."""

    uuid: str | None
    """Without the prefix `GPU-`."""
    pci_bus_id: str
    """domain:bus:device.function, as in 00000000:3B:00.0."""


def find_gpu(nvml: Any, address: GpuAddress) -> Any:
    """The handle of a GPU, by UUID, else by PCI bus id: for a part of a GPU (MIG) that of the whole GPU.

    Raises NvmlRefused where neither is known.
    """
    if address.uuid is not None:
        try:
            return ask(nvml.nvmlDeviceGetHandleByUUID, f"GPU-{address.uuid}")
        except NvmlRefused:
            pass
    return ask(nvml.nvmlDeviceGetHandleByPciBusId, address.pci_bus_id)


def is_divided(nvml: Any, handle: Any) -> bool:
    """Whether MIG divides the GPU, so that its counters are those of several users."""
    mode = ask_if_known(nvml, "nvmlDeviceGetMigMode", handle)
    return mode is not None and mode[0] == 1


def field_values(nvml: Any, handle: Any, fields: Sequence[tuple[int, int]]) -> list[int]:
    """Values of (field, scope) pairs, all read at once. Raises NvmlRefused if any is refused."""
    answers = ask(nvml.nvmlDeviceGetFieldValues, handle, list(fields))
    for (field, scope), answer in zip(fields, answers, strict=True):
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            raise NvmlRefused(f"field {field}, scope {scope:#x}: NVML error {answer.nvmlReturn}")
    return [int(getattr(answer.value, _MEMBERS[answer.valueType])) for answer in answers]


def link_count(nvml: Any, handle: Any) -> int:
    """NVLinks that the GPU has, active or not; 0 where it does not say."""
    try:
        return field_values(nvml, handle, [(nvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)])[0]
    except (NvmlRefused, AttributeError):
        return 0


def active_links(nvml: Any, handle: Any) -> list[int]:
    """Indices of the NVLinks that are up."""
    links = range(link_count(nvml, handle))
    return [link for link in links if ask_if_known(nvml, "nvmlDeviceGetNvLinkState", handle, link) == 1]


class NvlinkCounter:
    """Payload bytes that crossed all NVLinks of a GPU since the driver was loaded.

    The fields NVLINK_THROUGHPUT_DATA count in KiB, and without the protocol: over 50 all-to-alls of two H200s their
    difference was the bytes handed to the collectives to 6e-5, that of the RAW fields 1.34 times as much.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Raises NvmlRefused, saying why, where the GPU has no link that is up or does not answer."""
        if is_divided(nvml, handle):
            raise NvmlRefused("the GPU is divided by MIG")
        self.links = active_links(nvml, handle)
        if not self.links:
            raise NvmlRefused("no NVLink of this GPU is up")
        self._nvml, self._handle = nvml, handle
        self._tx = ask(getattr, nvml, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")
        self._rx = ask(getattr, nvml, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
        field_values(nvml, handle, [(self._tx, ALL_LINKS), (self._rx, ALL_LINKS)])

    def read(self) -> tuple[int, int] | None:
        """Bytes sent and received over all links; None if the counter fails now."""
        try:
            tx, rx = field_values(self._nvml, self._handle, [(self._tx, ALL_LINKS), (self._rx, ALL_LINKS)])
        except NvmlRefused:
            return None
        return tx * KIB, rx * KIB

    def read_links(self) -> list[tuple[int, int]] | None:
        """Bytes sent and received over each link that is up, in their order; None where they are not told apart."""
        fields = [(field, link) for link in self.links for field in (self._tx, self._rx)]
        try:
            values = field_values(self._nvml, self._handle, fields)
        except NvmlRefused:
            return None
        return [(tx * KIB, rx * KIB) for tx, rx in zip(values[0::2], values[1::2], strict=True)]
