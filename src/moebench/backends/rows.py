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


@dataclass(frozen=True)
class Sent:
    """This rank's slots in the order in which they are sent: by expert, then by slot. Expert order is rank order."""

    slots_S: Tensor
    expert_S: Tensor
    j_S: Tensor
    """Index of the slot among this rank's slots of the same expert."""


def sort_slots(ids_S: Tensor, E: int) -> Sent:
    slots_S = torch.argsort(ids_S, stable=True)
    groups = enumerate_groups(count(ids_S, E), len(ids_S))
    return Sent(slots_S, groups.group_N, groups.j_N)


def round_up(counts: Tensor, multiple: int) -> Tensor:
    return (counts + multiple - 1) // multiple * multiple
