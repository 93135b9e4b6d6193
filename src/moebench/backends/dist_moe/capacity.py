"""Memory plan of dist_moe in closed form: receive rows, activation slot, scratch, and which layers recompute.

The forms are those of `plan_memory` of dist-moe 0.1.0, to the byte; they need no torch and no GPU.

Legend: T tokens of a rank, D hidden, E experts in total, F FFN width, K experts per token, P ranks, L layers,
R rows that a rank receives in one layer. `rows_LE` is one array [E] of rows per expert for each layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from moebench.cases.case import Case, Pipeline, Precision
from moebench.cases.routing import Counts
from moebench.cases.shape import Shape
from moebench.cases.work import layer_rows

ALIGNMENT_BYTES = 128
EXPERT_TILE_ROWS = 128
"""Block-scaled formats round the rows of every local expert up to this; bf16 packs rows without padding."""
SCALE_BLOCK = 32
NVFP4_SCALE_BLOCK = 16


class DistMoeCapacity(BaseModel):
    """The `capacity` object of a dist_moe packing case, in the order of the published report."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)
    slot_bytes: int
    slot_factor: float
    scratch_bytes: int
    scratch_factor: float
    host_scratch_bytes: int
    slots: int
    saved_rank0_bytes: int
    max_saved_rank_bytes: int
    capacity_recompute_flags: int
    inspected_rank_layers: int


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _column_quantised_bytes(R: int, width: int) -> int:
    """An mxfp8 matrix [R, width] with scales along its rows: the operand of a weight gradient."""
    return _aligned(R * width) + _aligned(width * -(-R // SCALE_BLOCK))


def _row_quantised_bytes(R: int, width: int) -> int:
    """An mxfp8 matrix [R, width] with scales along its columns, in paged 128x4 atoms (4 bytes a scale)."""
    return _aligned(R * width) + _aligned(4 * R * -(-width // SCALE_BLOCK))


def _nvfp4_row_quantised_bytes(R: int, width: int) -> int:
    """An nvfp4 matrix [R, width]: two elements a byte, paged scales, and 4 bytes for the scale of each row."""
    return _aligned(R * -(-width // 2)) + _aligned(4 * R * -(-width // NVFP4_SCALE_BLOCK) + 4 * R)


def occupied_rows(rows_E: Counts, ep: int, precision: Precision) -> list[int]:
    """Rows that each rank's buffers hold in one layer, [P]: the rows received, unless bf16 padded by expert."""
    if precision is not Precision.BF16:
        rows_E = -(-rows_E // EXPERT_TILE_ROWS) * EXPERT_TILE_ROWS
    return [int(rows) for rows in rows_E.reshape(ep, -1).sum(axis=1)]


def rows_at_factor(case: Case, factor: float) -> int:
    """Rows that a buffer sized for `factor` times T*K rows holds.

    The factor is clamped to ep, and the rows to the most that distinct experts can send to one rank.
    """
    s, local = case.shape, case.experts_per_rank
    rows = min(int(s.T * s.K * min(factor, case.ep) + 0.5), s.T * case.ep * min(s.K, local))
    if case.precision is not Precision.BF16:
        rows = (rows + local * (EXPERT_TILE_ROWS - 1)) // EXPERT_TILE_ROWS * EXPERT_TILE_ROWS
    return rows


def scratch_rows(case: Case) -> int:
    """The hard limit: rows of one layer that a rank can receive."""
    return rows_at_factor(case, case.capacity.scratch_factor)


def recomputed_bytes(shape: Shape) -> int:
    """Bytes that a layer keeps for backward when it recomputes: its input, [T, D] bf16."""
    return _aligned(2 * shape.T * shape.D)


def saved_bytes(shape: Shape, precision: Precision, R: int) -> int:
    """Bytes that a layer with R occupied rows keeps for backward when it does not recompute.

    Gathered rows, gate and up, in mxfp8 also quantised hidden rows, and the K routed outputs of each token.
    """
    D, F = shape.D, shape.F
    routed_outputs = _aligned(2 * shape.T * shape.K * D)
    if precision is Precision.BF16:
        return _aligned(2 * R * D) + _aligned(4 * R * F) + routed_outputs
    return _column_quantised_bytes(R, D) + _aligned(4 * R * F) + _column_quantised_bytes(R, F) + routed_outputs


def slot_bytes(case: Case) -> int:
    """Bytes of the activation slot that all layers of a training case share; 0 in inference.

    `slot_factor` scales what lies between the least (every layer recomputes) and a full save at balance.
    """
    if not case.training:
        return 0
    least = _aligned(case.layers * recomputed_bytes(case.shape))
    full = _aligned(case.layers * saved_bytes(case.shape, case.precision, rows_at_factor(case, 1.0)))
    return _aligned(least + ceil(case.capacity.slot_factor * (full - least)))


def scratch_bytes(case: Case, R: int | None = None) -> int:
    """Bytes of scratch for R occupied rows: backward with recompute in training, forward in inference.

    R is the hard limit if absent: what dist_moe reserves, and reports.
    """
    R = scratch_rows(case) if R is None else R
    D, F = case.shape.D, case.shape.F
    gate_up = _aligned(4 * R * F)
    if case.precision is Precision.BF16:
        forward = _aligned(2 * R * D) + gate_up + _aligned(2 * R * F)
        if not case.training:
            return forward
        return forward + gate_up + (_aligned(2 * R * D) if D > F else 0)
    row_bytes = _nvfp4_row_quantised_bytes if case.precision is Precision.NVFP4 else _row_quantised_bytes
    row_D, row_F, row_2F = (row_bytes(R, width) for width in (D, F, 2 * F))
    mega = case.pipeline is Pipeline.MEGA
    if not case.training:
        return (row_D + row_F if mega else max(row_D, row_F)) + gate_up
    operand = max(row_D + row_F, row_2F) if mega else max(row_D, row_F, row_2F)
    return (
        operand
        + 2 * _column_quantised_bytes(R, D)
        + gate_up
        + _column_quantised_bytes(R, F)
        + _aligned(2 * R * F)
        + _column_quantised_bytes(R, 2 * F)
    )


def why_rows_do_not_fit(case: Case, rows_LE: Sequence[Counts] | None = None) -> str | None:
    """The reason why scratch cannot hold the rows of some layer, or None. `rows_LE`: planned rows if absent.

    On a GPU an overflow is a trap that strands all other ranks, so it must be found before the launch.
    """
    limit = scratch_rows(case)
    for layer, rows_E in enumerate(layer_rows(case) if rows_LE is None else rows_LE):
        occupied_P = occupied_rows(rows_E, case.ep, case.precision)
        most = max(occupied_P)
        if most > limit:
            padded = "" if case.precision is Precision.BF16 else " (each expert padded to 128)"
            rank, factor = occupied_P.index(most), case.capacity.scratch_factor
            return (
                f"dist_moe scratch holds {limit} rows at scratch_factor {factor:g}, but rank {rank} "
                f"receives {most}{padded} in layer {layer}; raise scratch_factor"
            )
    return None


def must_recompute(saved_P: Sequence[int], full_P: Sequence[int], later_input_bytes: int, slot: int) -> bool:
    """Whether a layer recomputes: the worst rank decides for all.

    `saved_P`: bytes each rank has saved so far; `full_P`: bytes each would add; `later_input_bytes`: the
    inputs of the layers still to come, which must fit whatever happens; `slot`: bytes of the slot.
    """
    return max(map(sum, zip(saved_P, full_P, strict=True))) + later_input_bytes > slot


@dataclass(frozen=True)
class Retention:
    """Which layers recompute, and the bytes each rank has saved when forward ends."""

    recompute_L: tuple[bool, ...]
    saved_bytes_P: tuple[int, ...]


def retention(case: Case, rows_LE: Sequence[Counts] | None = None) -> Retention:
    """What the slot keeps of each layer, greedy in forward order. `rows_LE`: planned rows if absent.

    A decision needs no later layer, so the first n layers alone give the first n decisions.
    """
    rows_LE = layer_rows(case) if rows_LE is None else rows_LE
    if not case.training:
        return Retention((False,) * len(rows_LE), (0,) * case.ep)
    slot, kept_input = slot_bytes(case), recomputed_bytes(case.shape)
    saved_P, flags = [0] * case.ep, []
    for layer, rows_E in enumerate(rows_LE):
        rows_P = occupied_rows(rows_E, case.ep, case.precision)
        bytes_of = {rows: saved_bytes(case.shape, case.precision, rows) for rows in set(rows_P)}
        full_P = [bytes_of[rows] for rows in rows_P]
        later_inputs = (case.layers - 1 - layer) * kept_input
        flags.append(must_recompute(saved_P, full_P, later_inputs, slot))
        added_P = [kept_input] * case.ep if flags[-1] else full_P
        saved_P = [saved + added for saved, added in zip(saved_P, added_P, strict=True)]
    return Retention(tuple(flags), tuple(saved_P))


def activations_bytes(case: Case) -> int:
    """Bytes of received rows and of what they become that the fullest rank uses: saved, and in scratch."""
    most = max(max(occupied_rows(rows_E, case.ep, case.precision)) for rows_E in layer_rows(case))
    return max(retention(case).saved_bytes_P) + scratch_bytes(case, most)


def capacity_from_run(case: Case, saved_bytes_P: Sequence[int], recomputed_rank_layers: int) -> DistMoeCapacity:
    """The capacity object from the bytes every rank saved and the layers that recomputed, over all ranks."""
    return DistMoeCapacity(
        slot_bytes=slot_bytes(case),
        slot_factor=case.capacity.slot_factor,
        scratch_bytes=scratch_bytes(case),
        scratch_factor=case.capacity.scratch_factor,
        host_scratch_bytes=0,
        slots=1 if case.training else 0,
        saved_rank0_bytes=saved_bytes_P[0],
        max_saved_rank_bytes=max(saved_bytes_P),
        capacity_recompute_flags=recomputed_rank_layers,
        inspected_rank_layers=case.ep * case.layers,
    )


def planned_capacity(case: Case) -> DistMoeCapacity:
    """The capacity object that the exact routing of a case leads to."""
    kept = retention(case)
    return capacity_from_run(case, kept.saved_bytes_P, sum(kept.recompute_L) * case.ep)
