"""Rows of a dispatch, counted and ordered on the device from the ids, without reading anything back.

Legend: S = T*K slots (token t, choice k at t*K + k) of this rank, N rows of any kind, P ranks, E experts in total.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def count(index_N: Tensor, size: int) -> Tensor:
    """How often each of 0..size-1 occurs, int64 [size]. torch.bincount would synchronise on CUDA."""
    ones_N = torch.ones_like(index_N, dtype=torch.int64)
    return torch.zeros(size, dtype=torch.int64, device=index_N.device).index_add_(0, index_N, ones_N)


def exclusive_scan(counts: Tensor) -> Tensor:
    """Start of each group in rows laid out group after group, along the last axis."""
    return torch.cumsum(counts, -1) - counts


@dataclass(frozen=True)
class Groups:
    """N rows laid out group after group: the group of each row, and its index j inside the group."""

    group_N: Tensor
    j_N: Tensor


def enumerate_groups(counts_G: Tensor, total: int) -> Groups:
    """Rows of groups with these counts; `total`, their sum, is known to the host."""
    device = counts_G.device
    group_N = torch.repeat_interleave(torch.arange(len(counts_G), device=device), counts_G, output_size=total)
    j_N = torch.arange(total, device=device) - exclusive_scan(counts_G)[group_N]
    return Groups(group_N, j_N)


def sort_slots(ids_S: Tensor) -> Tensor:
    """This rank's slots in the order in which they are sent: by expert, then by slot. Expert order is rank order."""
    return torch.argsort(ids_S.short(), stable=True)  # a radix sort of int16 takes a quarter of the passes of int64


def round_up(counts: Tensor, multiple: int) -> Tensor:
    return (counts + multiple - 1) // multiple * multiple


def pack_by_expert(rows_Pe: Tensor, pad_rows: int, total: int) -> Tensor | None:
    """Place of each received row when experts follow each other, padded, and sources inside an expert; [N].

    Rows arrive source after source, and by expert from each; from a single source and unpadded they are in place
    already, and the result is None. `total`, their number, is known to the host.
    """
    if rows_Pe.shape[0] == 1 and pad_rows == 1:
        return None
    start_Pe = exclusive_scan(round_up(rows_Pe.sum(0), pad_rows)) + torch.cumsum(rows_Pe, 0) - rows_Pe
    groups = enumerate_groups(rows_Pe.reshape(-1), total)
    return start_Pe.reshape(-1)[groups.group_N] + groups.j_N
