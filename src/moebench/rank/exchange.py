"""Collectives between expert-parallel ranks, and the ledger of the bytes that crossed them.

Every tensor travels as bytes: gloo refuses float8, and no backend may count its own traffic.
"""

from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Renamed in torch 2.13, which warns about the old name."""


@dataclass
class Ledger:
    """Bytes exchanged with *other* ranks, by kind (dispatch, combine, metadata, ...)."""

    tx_bytes: Counter[str] = field(default_factory=Counter)
    rx_bytes: Counter[str] = field(default_factory=Counter)

    def clear(self) -> None:
        self.tx_bytes.clear()
        self.rx_bytes.clear()


class Pending:
    """A collective in flight. `out`, its output, is undefined until `wait` returns."""

    def __init__(self, out: Tensor, work: dist.Work | None, keep: tuple[Tensor, ...] = ()) -> None:
        self.out, self._work, self._keep = out, work, keep

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
            self._work, self._keep = None, ()
        return self.out


class Exchange:
    """The process group of one launch, with its ledger. Equal order of calls on all ranks is the caller's duty."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.ledger = Ledger()

    def all_to_all(self, kind: str, x: Tensor, send_rows: list[int], receive_rows: list[int]) -> Pending:
        """Start sending rows of x [sum(send_rows), ...], in rank order; the result is [sum(receive_rows), ...].

        Splits are rows for each rank, [P], on the host. `kind` names the traffic in the ledger. At one rank nothing
        moves, and the result is x itself.
        """
        x = x.contiguous()
        row_bytes = x.shape[1:].numel() * x.element_size()
        self.ledger.tx_bytes[kind] += (sum(send_rows) - send_rows[self.rank]) * row_bytes
        self.ledger.rx_bytes[kind] += (sum(receive_rows) - receive_rows[self.rank]) * row_bytes
        if self.world_size == 1:
            return Pending(x, None)
        out = torch.empty((sum(receive_rows), *x.shape[1:]), dtype=x.dtype, device=x.device)
        flat_in = x.view(-1).view(torch.uint8)
        flat_out = out.view(-1).view(torch.uint8)
        work = dist.all_to_all_single(
            flat_out,
            flat_in,
            [rows * row_bytes for rows in receive_rows],
            [rows * row_bytes for rows in send_rows],
            async_op=True,
        )
        return Pending(out, work, (flat_in, flat_out))

    def all_gather(self, kind: str, x: Tensor) -> Pending:
        """Start gathering x of every rank; the result is [P, *x.shape]."""
        x = x.contiguous()
        if self.world_size == 1:
            return Pending(x.unsqueeze(0), None)
        out = torch.empty((self.world_size, *x.shape), dtype=x.dtype, device=x.device)
        size = x.numel() * x.element_size()
        self.ledger.tx_bytes[kind] += size * (self.world_size - 1)
        self.ledger.rx_bytes[kind] += size * (self.world_size - 1)
        flat_in, flat_out = x.view(-1).view(torch.uint8), out.view(-1).view(torch.uint8)
        if dist.get_backend() == "gloo":  # its ring takes twice as long as sending to all at once
            flat_in = flat_in.repeat(self.world_size)
            work = dist.all_to_all_single(flat_out, flat_in, async_op=True)
        else:
            work = _all_gather(flat_out, flat_in, async_op=True)
        return Pending(out, work, (flat_in, flat_out))
