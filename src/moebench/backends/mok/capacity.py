"""Row plan of mok: padded schedule rows, the rows it retains for backward, and those it replays.

mok pads every local expert's rows to `pad_rows`, keeps the first macrobatch of a layer, and in backward
replays (dispatches and computes again) the rows of all later ones. Source: mok's scheduler constants and its
description of macrobatches; the forms give the capacity objects of the published report exactly.

Legend: E experts in total, P ranks, L layers. `rows_LE` is one array [E] of rows per expert for each layer.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from moebench.cases.case import Case, Precision
from moebench.cases.routing import Counts
from moebench.cases.work import layer_rows


class MokCapacity(BaseModel):
    """The `capacity` object of a mok packing case, in the order of the published report."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
    requested_rows_per_layer: int
    retained_rows_per_layer: int
    minibatch_rows: int
    effective_factor: float
    rank0_schedule_rows: list[int]
    rank0_replay_rows: list[int]
    total_replay_rows: int
    rank_layer_replay_count: int
    source_policy_derived: bool


def schedule_rows(rows_E: Counts, ep: int, pad_rows: int) -> Counts:
    """Rows that each rank computes in one layer, [P]: each expert's rows rounded up, 0 for an empty one."""
    padded_E: Counts = -(-rows_E // pad_rows) * pad_rows
    rows_P: Counts = padded_E.reshape(ep, -1).sum(axis=1)
    return rows_P


def requested_rows(case: Case) -> int:
    """Rows of a layer that the case asks to retain."""
    factor = case.capacity.retained_factor
    if factor is None:
        return case.capacity.macrobatch_rows
    return int(factor * case.shape.T * case.shape.K + 0.5)


def retained_rows(case: Case) -> int:
    """Rows of a macrobatch, and so the rows of a layer kept for backward: whole minibatches."""
    if case.capacity.retained_factor is None:
        return case.capacity.macrobatch_rows
    granule = case.capacity.minibatch_rows
    return -(-requested_rows(case) // granule) * granule


def replay_rows(schedule_P: Counts, retained: int) -> Counts:
    """Rows that each rank replays in backward, [P]: all beyond the first macrobatch."""
    return np.maximum(schedule_P - retained, 0)


def macrobatches(schedule_P: Counts, retained: int) -> Counts:
    """Macrobatches of each rank, [P]; 0 for a rank without rows. All ranks loop to the maximum over ranks."""
    return -(-schedule_P // retained)


def capacity_from_rows(
    case: Case, schedule_LP: Sequence[Counts], replay_LP: Sequence[Counts], *, planned: bool
) -> MokCapacity:
    """The capacity object from the rows every rank scheduled and replayed in each layer, planned or counted."""
    retained = retained_rows(case)
    return MokCapacity(
        requested_rows_per_layer=requested_rows(case),
        retained_rows_per_layer=retained,
        minibatch_rows=case.capacity.minibatch_rows,
        effective_factor=retained / (case.shape.T * case.shape.K),
        rank0_schedule_rows=[int(rows_P[0]) for rows_P in schedule_LP],
        rank0_replay_rows=[int(rows_P[0]) for rows_P in replay_LP],
        total_replay_rows=sum(int(rows_P.sum()) for rows_P in replay_LP),
        rank_layer_replay_count=sum(int(np.count_nonzero(rows_P)) for rows_P in replay_LP),
        source_policy_derived=planned,
    )


def activations_bytes(case: Case) -> int:
    """Bytes of received rows and of what they become that the fullest rank uses, with mok's workspace.

    Per row: context kept for backward, and temporaries of one layer, by mok's allocations. The published
    peaks of training fit two contexts a layer, those of inference one, which mok writes there too.
    """
    s, ep = case.shape, case.ep
    rows_L = [int(schedule_rows(rows_E, ep, case.capacity.pad_rows).max()) for rows_E in layer_rows(case)]
    rows_L = [min(rows, retained_rows(case)) for rows in rows_L]
    workspace = 4 * s.T * s.D * (1 + s.K) + 8 * s.T * s.K + 4 * ep * s.T * s.K
    if case.precision is Precision.BF16:
        context, forward, backward = 2.0 * s.D + 6 * s.F, 4.0 * s.D + 6 * s.F, 4 * s.D + 6.04 * s.F
    else:
        context, forward = 33 / 32 * (s.D + 3 * s.F), 4.0625 * s.D + 8.125 * s.F
        backward = 5.094 * s.D + 11.19 * s.F
    if case.training:
        return workspace + int(2 * context * sum(rows_L) + backward * max(rows_L))
    return workspace + int((context + forward) * max(rows_L))


def planned_capacity(case: Case) -> MokCapacity:
    """The capacity object that the exact routing of a case leads to."""
    retained = retained_rows(case)
    schedule_LP = [schedule_rows(rows_E, case.ep, case.capacity.pad_rows) for rows_E in layer_rows(case)]
    replay_LP = [replay_rows(rows_P, retained) if case.training else 0 * rows_P for rows_P in schedule_LP]
    return capacity_from_rows(case, schedule_LP, replay_LP, planned=True)
