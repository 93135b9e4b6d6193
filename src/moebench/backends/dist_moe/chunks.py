"""dist_moe's rows: packed expert after expert, and inside an expert source after source; cut into token chunks.

`standard` and `staged` move a layer in one chunk, `mega` in several, so that one is in flight while another is
computed. Legend: P ranks, E experts in total, e experts of a rank, S slots of a chunk on one rank.
"""

from itertools import pairwise

import torch
from torch import Tensor

from moebench.backends.gemm import ends_of
from moebench.backends.piece import Piece, Splits
from moebench.backends.rows import count, pack_by_expert, round_up, sort_slots


def token_chunks(T: int, chunks: int) -> list[slice]:
    """At most `chunks` runs of tokens whose lengths differ by at most 1; none is empty."""
    edges = [T * c // min(chunks, T) for c in range(min(chunks, T) + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def counts_by_source(ids_PS: Tensor, E: int) -> Tensor:
    """Rows of each source rank for each expert, [P, E]."""
    P = ids_PS.shape[0]
    of_source_P1 = torch.arange(P, device=ids_PS.device).unsqueeze(1)
    return count((of_source_P1 * E + ids_PS).reshape(-1), P * E).view(P, E)


def split_sizes(counts_PE: Tensor, rank: int, pad_rows: int) -> Splits:
    """What the host knows of a chunk, read before timing only."""
    P, E = counts_PE.shape
    rows_PPe = counts_PE.view(P, P, E // P)
    return Splits(
        send_rows=rows_PPe[rank].sum(-1).tolist(),
        receive_rows=rows_PPe[:, rank].sum(-1).tolist(),
        buffer_rows=int(round_up(rows_PPe[:, rank].sum(0), pad_rows).sum()),
    )


def chunk_piece(ids_PS: Tensor, first_slot: int, rank: int, E: int, pad_rows: int, splits: Splits) -> Piece:
    """A chunk as the device makes it from the ids of all ranks; `first_slot` is the chunk's first slot of T*K."""
    P = ids_PS.shape[0]
    e = E // P
    mine_Pe = counts_by_source(ids_PS, E)[:, rank * e : (rank + 1) * e]
    return Piece(
        splits=splits,
        slots_S=sort_slots(ids_PS[rank]) + first_slot,
        place_N=pack_by_expert(mine_Pe, pad_rows, sum(splits.receive_rows)),
        ends_e=ends_of(round_up(mine_Pe.sum(0), pad_rows)),
    )
