"""Where a case's traffic figures come from: NVLink's own counters if they saw the traffic, else the ledger.

The ledger counts the bytes handed to the collectives (`transport`). A backend that moves bytes by other means leaves
it empty; then, without NVLink, only the formula is left (`logical`).
"""

from enum import StrEnum

import torch
import torch.distributed as dist

from moebench.rank.trace import Window

SEEN = 0.9
"""Share of the ledger's bytes that NVLink must have carried to stand for the traffic: with less, the rest went by
InfiniBand, PCIe or host memory."""


class TrafficSource(StrEnum):
    NVLINK = "nvlink"
    TRANSPORT = "transport"
    LOGICAL = "logical"


def nvlink_saw_all(windows: list[Window]) -> bool:
    """Whether NVLink's counters answered around every window and saw this rank's traffic."""
    seen = [(w.nvlink_tx_bytes, w.nvlink_rx_bytes) for w in windows]
    if any(tx is None or rx is None for tx, rx in seen):
        return False
    total = sum((tx or 0) + (rx or 0) for tx, rx in seen)
    return total > 0 and total >= SEEN * _counted(windows)


def _counted(windows: list[Window]) -> int:
    return sum(w.tx_bytes + w.rx_bytes for w in windows)


def traffic_source(windows: list[Window], ranks: int, device: torch.device) -> TrafficSource:
    """The source of all ranks: what one rank cannot use, none does. Collective above one rank."""
    if ranks == 1:
        return TrafficSource.TRANSPORT
    unseen_used = torch.tensor([not nvlink_saw_all(windows), _counted(windows) > 0], dtype=torch.int32, device=device)
    dist.all_reduce(unseen_used, dist.ReduceOp.MAX)
    unseen, ledger_used = unseen_used.tolist()
    return choose_source(nvlink_saw_all=not unseen, ledger_used=bool(ledger_used))


def choose_source(*, nvlink_saw_all: bool, ledger_used: bool) -> TrafficSource:
    if nvlink_saw_all:
        return TrafficSource.NVLINK
    return TrafficSource.TRANSPORT if ledger_used else TrafficSource.LOGICAL
