"""The command line and environment of one torchrun on one host."""

import os
import socket
import sys
from pathlib import Path

from moebench.cases.machine import usable_cores
from moebench.launch.leftovers import MARK

LOOPBACK = "127.0.0.1"

_INHERITED = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_INHERITED_PREFIXES = ("TORCHELASTIC_", "PET_", "ROLE_", "MOEBENCH_")


def free_port() -> int:
    """A TCP port of loopback that is free now. Another process may take it first: launches retry."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def loopback_interface() -> str:
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def command(ranks: int, folder: Path, name: str, module: str, argument: Path) -> list[str]:
    """torchrun of a module, with one argument, on a free port. Its rendezvous is static: nothing is unpickled, and no
    second store is opened."""
    return [
        sys.executable,
        "-m",
        "moebench.launch.agent",
        str(folder / "failures.json"),
        "--nnodes=1",
        f"--nproc-per-node={ranks}",
        "--node-rank=0",
        "--rdzv-backend=static",
        f"--rdzv-id={name}",
        f"--master-addr={LOOPBACK}",
        f"--master-port={free_port()}",
        f"--local-addr={LOOPBACK}",
        "--max-restarts=0",
        f"--log-dir={folder / 'ranks'}",
        "--redirects=3",
        "-m",
        module,
        str(argument),
    ]


def environment(ranks: int, run: Path | None = None) -> dict[str, str]:
    """This process's environment without what an outer launcher set; threads shared out; sockets on loopback; the mark
    of the run."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in _INHERITED and not key.startswith(_INHERITED_PREFIXES)
    }
    threads = max(1, usable_cores(Path("/")) // ranks)
    interface = loopback_interface()
    # Threads that spin at OpenMP's barriers wait for whole time slices once anything else wants a core: an iteration
    # of 15 ms took up to 760 ms on a busy machine of 2 cores.
    return (
        {"OMP_WAIT_POLICY": "PASSIVE"}
        | env
        | {
            "OMP_NUM_THREADS": str(threads),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "PYTHONUNBUFFERED": "1",
            "MOEBENCH_SUPERVISOR_PID": str(os.getpid()),
        }
        | ({} if run is None else {MARK: str(run)})
    )
