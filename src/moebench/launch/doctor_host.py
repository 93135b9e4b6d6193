"""The host that moebench runs on: cores, memory, limits, disk, loopback."""

import os
import platform
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field

from moebench import __version__
from moebench.cases.machine import available_bytes, processor, usable_cores
from moebench.launch.torchrun import LOOPBACK, loopback_interface

T = TypeVar("T")


class Limits(BaseModel):
    """Soft limits of this process (`ulimit`); None where there is none."""

    model_config = ConfigDict(frozen=True)
    open_files: int | None = None
    locked_memory_bytes: int | None = None
    processes: int | None = None


class Host(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str
    system: str
    processor: str
    python: str
    moebench: str
    cores: int | None = Field(description="that this process may use")
    load: float | None = Field(default=None, description="mean number of runnable processes in the last minute")
    available_bytes: int | None = Field(default=None, description="memory that can be used without swapping")
    shared_memory_bytes: int | None = Field(default=None, description="size of /dev/shm; none where there is none")
    folder: str = Field(description="the working folder, where runs go")
    folder_writable: bool
    disk_free_bytes: int | None = Field(default=None, description="of the working folder")
    limits: Limits | None = Field(default=None, description="none where the system has no such limits")
    loopback: str | None = Field(default=None, description="the interface; none where it cannot be used")
    infiniband: list[str] = Field(default=[], description="devices")


def examine_host(root: Path = Path("/")) -> Host:
    """The host as it is now. `root` stands for /."""
    folder = known(Path.cwd)
    shm = known(lambda: shutil.disk_usage(root / "dev/shm").total)
    return Host(
        name=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        processor=processor(root),
        python=platform.python_version(),
        moebench=__version__,
        cores=known(lambda: usable_cores(root)),
        load=known(lambda: os.getloadavg()[0]),
        available_bytes=known(lambda: available_bytes(root)),
        shared_memory_bytes=shm,
        folder=str(folder) if folder else "(gone)",
        folder_writable=folder is not None and os.access(folder, os.W_OK),
        disk_free_bytes=known(lambda: shutil.disk_usage(".").free),
        limits=_limits(),
        loopback=known(_loopback),
        infiniband=sorted(path.name for path in (root / "sys/class/infiniband").glob("*")),
    )


def known(question: Callable[[], T]) -> T | None:
    """The answer, or None on a machine that has none."""
    try:
        return question()
    except (OSError, ValueError, AttributeError, ImportError):
        return None


def _limits() -> Limits | None:
    try:
        import resource
    except ImportError:
        return None

    def soft(name: str) -> int | None:
        value = known(lambda: resource.getrlimit(getattr(resource, name))[0])
        return None if value in (None, resource.RLIM_INFINITY) else value

    return Limits(
        open_files=soft("RLIMIT_NOFILE"),
        locked_memory_bytes=soft("RLIMIT_MEMLOCK"),
        processes=soft("RLIMIT_NPROC"),
    )


def _loopback() -> str:
    """The loopback interface, after a connection over it to a port of our own."""
    with socket.socket() as server:
        server.settimeout(5)
        server.bind((LOOPBACK, 0))
        server.listen()
        with socket.create_connection(server.getsockname(), timeout=5):
            return loopback_interface()
