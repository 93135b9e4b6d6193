"""Bytes over the host's InfiniBand ports, of all its processes together: the kernel does not tell them apart."""

from pathlib import Path

WORD_BYTES = 4
"""port_xmit_data and port_rcv_data count in words of four bytes, whatever the width of the port."""

CLASS = Path("/sys/class/infiniband")


def infiniband_bytes(folder: Path = CLASS) -> dict[str, tuple[int, int]]:
    """Bytes sent and received by each port, by `device/port`; empty without InfiniBand."""
    found = {}
    try:
        for counters in sorted(folder.glob("*/ports/*/counters")):
            device, port = counters.parts[-4], counters.parts[-2]
            tx, rx = (_count(counters / name) for name in ("port_xmit_data", "port_rcv_data"))
            if tx is not None and rx is not None:
                found[f"{device}/{port}"] = (tx * WORD_BYTES, rx * WORD_BYTES)
    except OSError:
        return {}
    return found


def _count(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
