"""A piece of a layer's rows: what travels in one all-to-all and is computed in one buffer.

The portable strategies differ in how they cut a layer into pieces (token chunks, macrobatches), how they lay rows
out in the buffer, and in what order dispatch, compute and combine of the pieces follow each other.
Legend: S slots sent by this rank, N rows received, B rows of the buffer, e local experts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moebench.rank.exchange import Exchange, Pending


@dataclass(frozen=True)
class Splits:
    """What the host knows of a piece before the layer is called."""

    send_rows: list[int]
    """[P] rows to each rank."""
    receive_rows: list[int]
    """[P] rows from each rank."""
    buffer_rows: int


@dataclass(frozen=True)
class Piece:
    """What the device makes of the ids, for one piece."""

    splits: Splits
    slots_S: Tensor
    """Slots that this rank sends, in order."""
    place_N: Tensor | None
    """Row of the buffer for each received row; None where rows arrive as the buffer wants them."""
    ends_e: Tensor
    """End row of each local expert in the buffer, int32."""


def send(exchange: Exchange, kind: str, piece: Piece, rows_S: Tensor) -> Pending:
    """Rows of the piece's slots on their way to the ranks of their experts."""
    return exchange.all_to_all(kind, rows_S, piece.splits.send_rows, piece.splits.receive_rows)


def send_back(exchange: Exchange, kind: str, piece: Piece, buffer_B: Tensor) -> Pending:
    """Rows of the buffer on their way back to the slots they came from."""
    return exchange.all_to_all(kind, take_out(piece, buffer_B), piece.splits.receive_rows, piece.splits.send_rows)


def lay_out(piece: Piece, rows_N: Tensor) -> Tensor:
    """Received rows at their places in a buffer, whose padding rows are zero, [B, ...]."""
    if piece.place_N is None:
        return rows_N
    make = torch.empty if piece.splits.buffer_rows == len(rows_N) else torch.zeros
    buffer_B = make((piece.splits.buffer_rows, *rows_N.shape[1:]), dtype=rows_N.dtype, device=rows_N.device)
    return buffer_B.index_copy_(0, piece.place_N, rows_N)


def take_out(piece: Piece, buffer_B: Tensor) -> Tensor:
    """Rows of a buffer in the order in which they arrived, [N, ...]."""
    return buffer_B if piece.place_N is None else buffer_B[piece.place_N]


def add_weight_gradient(total: Tensor | None, part: Tensor) -> Tensor:
    """Gradients of one weight from several pieces, added in BF16 as the libraries do."""
    return part if total is None else total.add_(part)
