"""Settings of the real mok for a case, from the routing as the host knows it.

A schedule that overflows its capacity ends in a device trap on that rank while its peers spin for ever: the rows of
every rank are therefore counted here, before anything is launched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moebench.backends.mok.capacity import retained_rows, schedule_rows
from moebench.backends.mok.library_limits import PAD_ROWS
from moebench.cases.case import Case, Precision
from moebench.cases.routing import Counts, Ids

COMMUNICATION_SMS = {Precision.BF16: (24, 28), Precision.MXFP8: (36, 36)}
"""SMs that only communicate, forward and backward: those of mok's own benchmark, whose default shape is that of
gb300. MoKConfig's defaults are 40 and 28."""

_LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Settings:
    """Fields of MoKConfig. All Python numbers: mok refuses numpy's."""

    fwd_num_comm_sms: int
    bwd_num_comm_sms: int
    minibatch_size: int
    macrobatch_size: int
    schedule_capacity_multiplier: float
    all_gather_top_experts_chunk_bytes: int


@dataclass(frozen=True)
class Plan:
    settings: Settings
    most_rows: int
    """Padded rows of the fullest rank in the fullest layer."""
    schedule_capacity: int
    """Rows that a rank's schedule holds."""


def rows_by_expert(ids_PTK: Ids, E: int) -> Counts:
    """Rows of every expert, [E]. Raises ValueError for ids outside 0..E-1: mok would leave them out silently."""
    if ids_PTK.min() < 0 or ids_PTK.max() >= E:
        raise ValueError(f"expert ids reach from {ids_PTK.min()} to {ids_PTK.max()}, experts from 0 to {E - 1}")
    rows_E: Counts = np.bincount(ids_PTK.reshape(-1), minlength=E).astype(np.int64)
    return rows_E


def plan(case: Case, rows_LE: Sequence[Counts], default_multiplier: float) -> Plan:
    """Settings whose schedule holds the rows of every rank and layer.

    Capacity is T*K * max(2, ceil(ep * multiplier)): that of the default multiplier, as users run it, and more only
    where the routing needs it. Raises ValueError where no capacity can hold the rows.
    """
    s, routes = case.shape, case.shape.T * case.shape.K
    most_rows = max(int(schedule_rows(rows_E, case.ep, PAD_ROWS).max()) for rows_E in rows_LE)
    factor = max(2, math.ceil(case.ep * default_multiplier), -(-most_rows // routes))
    if routes * factor > _LARGEST_INT32:
        raise ValueError(
            f"mok's schedule counts rows in 32 bits, but rank rows of {most_rows} need a capacity of {routes * factor}"
        )
    forward_sms, backward_sms = COMMUNICATION_SMS[case.precision]
    return Plan(
        settings=Settings(
            fwd_num_comm_sms=forward_sms,
            bwd_num_comm_sms=backward_sms,
            minibatch_size=case.capacity.minibatch_rows,
            macrobatch_size=retained_rows(case),
            schedule_capacity_multiplier=(factor - 0.5) / case.ep,  # ceil(ep * multiplier) is factor, however it rounds
            all_gather_top_experts_chunk_bytes=2048 if s.T * s.K * 4 % 2048 == 0 else 1024,
        ),
        most_rows=most_rows,
        schedule_capacity=routes * factor,
    )
