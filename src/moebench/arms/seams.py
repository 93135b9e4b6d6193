"""Activations and gradients between the ranks of a pipeline, as bytes, and the ledger of what was sent."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.arms.model import STREAM


@dataclass
class Ledger:
    """Bytes that this rank sent, and received, over the seam before its blocks and over the one after them."""

    sent: dict[str, int] = field(default_factory=lambda: {"before": 0, "after": 0})
    received: dict[str, int] = field(default_factory=lambda: {"before": 0, "after": 0})

    def clear(self) -> None:
        for counts in (self.sent, self.received):
            counts.update(before=0, after=0)


class Arrival:
    """A tensor on its way here; undefined until `wait` returns it."""

    def __init__(self, tensor: Tensor, work: dist.Work | None) -> None:
        self._tensor, self._work = tensor, work

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
        return self._tensor


class Seams:
    """Point-to-point exchange with the previous and the next rank. Everything travels in bf16."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.ledger = Ledger()
        self._leaving: list[tuple[dist.Work | None, Tensor]] = []

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.ranks - 1

    def send(self, side: str, tensor: Tensor) -> None:
        """Start sending to the rank `before` or `after` this one."""
        raw = tensor.detach().to(STREAM, copy=True).contiguous().view(-1).view(torch.uint8)
        self.ledger.sent[side] += raw.numel()
        self._leaving.append((dist.isend(raw, self._peer(side)), raw))

    def receive(self, side: str, shape: tuple[int, ...], device: torch.device) -> Arrival:
        """Start receiving a bf16 tensor from the rank `before` or `after` this one."""
        tensor = torch.empty(shape, dtype=STREAM, device=device)
        raw = tensor.view(-1).view(torch.uint8)
        self.ledger.received[side] += raw.numel()
        return Arrival(tensor, dist.irecv(raw, self._peer(side)))

    def flush(self) -> None:
        """Wait until everything has left."""
        for work, _ in self._leaving:
            if work is not None:
                work.wait()
        self._leaving.clear()

    def _peer(self, side: str) -> int:
        return self.rank + (1 if side == "after" else -1)
