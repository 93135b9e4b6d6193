"""How much work a case is: FLOPs and bytes by formula. Rates divide these by a measured time.

Formulas are those of the published GB300 report, which they reproduce to the last digit.
"""

from functools import lru_cache

import numpy as np

from moebench.cases.case import Case, Precision
from moebench.cases.routing import Counts, rows_per_expert

WEIGHT_BYTES = {Precision.BF16: 2.0, Precision.MXFP8: 1 + 1 / 32, Precision.NVFP4: 1 / 2 + 1 / 16}
"""Bytes per routed weight as the kernels read it: mxfp8 has a scale byte per 32 elements, nvfp4 one per 16."""


@lru_cache(maxsize=4096)
def _rows_per_expert(T: int, K: int, E: int, ep: int, imbalance: float) -> Counts:
    return rows_per_expert(T, K, E, ep, imbalance)


def layer_rows(case: Case) -> list[Counts]:
    """Rows of every expert, [E], for each layer of the case."""
    s = case.shape
    return [_rows_per_expert(s.T, s.K, s.E, case.ep, imbalance) for imbalance in case.layer_imbalances]


def rows_per_rank(case: Case) -> list[Counts]:
    """Rows that each rank receives, [P], for each layer."""
    return [rows.reshape(case.ep, -1).sum(axis=1) for rows in layer_rows(case)]


def useful_flops(case: Case) -> int:
    """Useful FLOPs of one rank and iteration: 6*(K+S)*T*D*F * layers * passes. No padding, no replay."""
    s = case.shape
    return 6 * (s.K + s.S) * s.T * s.D * s.F * case.layers * case.passes


def modeled_hbm_bytes(case: Case) -> float:
    """Modeled HBM bytes of one rank and iteration (mean over ranks).

    passes * sum over layers of: weights of the active local experts, shared weights, FFN activations,
    token rows, scores. An expert is active when it receives at least one row.
    """
    s, w = case.shape, WEIGHT_BYTES[case.precision]
    total = 0.0
    for rows in layer_rows(case):
        active = float(np.count_nonzero(rows)) / case.ep
        total += (
            active * 3 * s.D * s.F * w
            + s.S * 3 * s.D * s.F * 2
            + (s.K + s.S) * s.T * s.F * 4
            + (s.K + 3) * s.T * s.D * 2
            + s.T * s.K * 4
        )
    return case.passes * total


def logical_tx_bytes(case: Case) -> float:
    """Bytes that one rank must send to other ranks in an iteration (mean over ranks).

    R = layers*T*K*(ep-1)/ep remote rows. Dispatch and combine are BF16 rows, forward and backward, but
    dist_moe's block-scaled inference dispatches quantised rows, and mok sends 8 more bytes a row in backward.
    Replayed dispatch and metadata are not in it.
    """
    s = case.shape
    remote = case.layers * s.T * s.K * (case.ep - 1) / case.ep
    forward = (_dispatched_row_bytes(case) + 2 * s.D) * remote
    if not case.training:
        return forward
    return forward + (4 * s.D + (8 if case.backend == "mok" else 0)) * remote


def _dispatched_row_bytes(case: Case) -> float:
    """A token's row on its way to an expert: bf16, or as dist_moe's inference quantises it at the source.

    A row of nvfp4 has a scale of its own besides those of its blocks, and is padded to 16 bytes.
    """
    D = case.shape.D
    if case.backend == "dist_moe" and not case.training:
        if case.precision is Precision.MXFP8:
            return D + D / 32
        if case.precision is Precision.NVFP4:
            return -(-(D // 2 + D // 16 + 4) // 16) * 16
    return 2 * D
