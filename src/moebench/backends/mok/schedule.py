"""mok's schedule: in which row of which rank's padded layout every route lands, and in which macrobatch.

Rows of a local expert take turns over the source ranks (the first route of each source, then the second of each),
and each expert is padded to `pad_rows`. A macrobatch is `retained` consecutive rows of a rank's layout.
Legend: P ranks, E experts in total, e experts of a rank, S slots of this rank, N rows this rank receives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from moebench.backends.gemm import ends_of
from moebench.backends.piece import Piece, Splits
from moebench.backends.rows import count, enumerate_groups, exclusive_scan, round_up, sort_slots


@dataclass(frozen=True)
class Routes:
    """Every route this rank sends and receives, in wire order, with its row in the receiver's layout."""

    slots_S: Tensor
    destination_S: Tensor
    row_S: Tensor
    source_N: Tensor
    row_N: Tensor
    ends_e: Tensor
    """End of each local expert in this rank's padded layout."""


def place_routes(ids_PS: Tensor, rank: int, E: int, pad_rows: int, received: int) -> Routes:
    """Routes of `rank` from the ids of all ranks. `received`, its rows, is known to the host."""
    P, e = ids_PS.shape[0], E // ids_PS.shape[0]
    of_source_P1 = torch.arange(P, device=ids_PS.device).unsqueeze(1)
    counts_PE = count((of_source_P1 * E + ids_PS).reshape(-1), P * E).view(P, E)
    padded_Pe = round_up(counts_PE.sum(0), pad_rows).view(P, e)
    base_E = exclusive_scan(padded_Pe).reshape(-1)

    def row(source: Tensor, expert: Tensor, j: Tensor) -> Tensor:
        theirs_PX = counts_PE[:, expert]
        earlier_turns = torch.minimum(theirs_PX, j).sum(0)
        this_turn = ((theirs_PX > j) & (of_source_P1 < source)).sum(0)
        return base_E[expert] + earlier_turns + this_turn

    sent = enumerate_groups(counts_PE[rank], ids_PS.shape[1])
    groups = enumerate_groups(counts_PE[:, rank * e : (rank + 1) * e].reshape(-1), received)
    source_N, expert_N = groups.group_N // e, rank * e + groups.group_N % e
    return Routes(
        slots_S=sort_slots(ids_PS[rank]),
        destination_S=sent.group_N // e,
        row_S=row(torch.full_like(sent.group_N, rank), sent.group_N, sent.j_N),
        source_N=source_N,
        row_N=row(source_N, expert_N, groups.j_N),
        ends_e=ends_of(padded_Pe[rank]),
    )


def split_sizes(routes: Routes, P: int, retained: int, macrobatches: int) -> list[Splits]:
    """Rows of each macrobatch by destination and source, read on the host: before timing only."""
    size = macrobatches * P
    send_MP = count(routes.row_S // retained * P + routes.destination_S, size).view(-1, P).tolist()
    receive_MP = count(routes.row_N // retained * P + routes.source_N, size).view(-1, P).tolist()
    scheduled = int(routes.ends_e[-1])
    rows_M = [min(max(0, scheduled - m * retained), retained) for m in range(macrobatches)]
    return [Splits(*parts) for parts in zip(send_MP, receive_MP, rows_M, strict=True)]


def macrobatch_pieces(routes: Routes, splits: list[Splits], retained: int) -> list[Piece]:
    """The macrobatches of a layer, first to last."""
    send_order_S = torch.argsort(routes.row_S // retained, stable=True)
    receive_order_N = torch.argsort(routes.row_N // retained, stable=True)
    slots_M = routes.slots_S[send_order_S].split([sum(s.send_rows) for s in splits])
    rows_M = routes.row_N[receive_order_N].split([sum(s.receive_rows) for s in splits])
    return [
        Piece(
            splits=sizes,
            slots_S=slots_S,
            place_N=row_N - m * retained,
            ends_e=(routes.ends_e - m * retained).clamp(0, sizes.buffer_rows),
        )
        for m, (sizes, slots_S, row_N) in enumerate(zip(splits, slots_M, rows_M, strict=True))
    ]
