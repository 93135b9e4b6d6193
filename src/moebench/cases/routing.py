"""Who sends which token where: exact, and the same for every backend.

Legend: P ranks, T tokens of a rank, E experts in total, K experts per token.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Counts = NDArray[np.int64]

MOST_ROWS = 2**28
"""Of one layer over all ranks. Each rank holds the ids of all, as int32."""


def _evenly(totals: Counts, parts: int) -> Counts:
    """Split each total into `parts` integers that differ by at most 1, larger ones first: [n] to [n, parts]."""
    totals = totals[:, None]
    split: Counts = totals // parts + (np.arange(parts, dtype=np.int64) < totals % parts)
    return split


def hot_rows(T: int, K: int, imbalance: float) -> int:
    """Rows that rank 0 receives: imbalance*T*K, rounded to nearest."""
    return int(imbalance * T * K + 0.5)


def rows_per_expert(T: int, K: int, E: int, ep: int, imbalance: float) -> Counts:
    """Rows of every expert, [E]; sums to ep*T*K. Expert e lives on rank e // (E/ep).

    Raises ValueError, with the reason, where no routing of distinct experts can have this imbalance.
    """
    if E % ep:
        raise ValueError(f"E={E} experts do not divide over ep={ep} ranks")
    if K > E:
        raise ValueError(f"K={K} distinct experts per token cannot be chosen from E={E}")
    if not 0 <= imbalance <= ep:
        raise ValueError(f"imbalance {imbalance:g} is outside 0..{ep}: ep={ep} ranks share {ep}*T*K rows")
    hot, total = hot_rows(T, K, imbalance), ep * T * K
    if total > MOST_ROWS:
        raise ValueError(f"ep*T*K={total} rows in a layer are more than can be routed ({MOST_ROWS})")
    if ep == 1 and imbalance != 1:
        raise ValueError(f"imbalance {imbalance:g} is impossible at ep=1: the only rank receives every row")
    rows_P = np.array([hot])
    if ep > 1:
        rows_P = np.concatenate([rows_P, _evenly(np.array([total - hot]), ep - 1)[0]])
    counts = _evenly(rows_P, E // ep).ravel()
    if counts.max() > ep * T:
        raise ValueError(
            f"imbalance {imbalance:g} needs {counts.max()} rows for one expert, but a token goes to an "
            f"expert at most once, so ep*T={ep * T} is the most"
        )
    return counts


def route(T: int, K: int, E: int, ep: int, imbalance: float, seed: int, layer: int) -> Ids:
    """Expert ids of every token of every rank, [P, T, K], distinct inside a token.

    Source ranks contribute evenly to every expert. Tokens and the K ids of each are shuffled from raw PCG64
    output keyed by (seed, layer, source), so the result is the same with every numpy version.
    Raises ValueError as `rows_per_expert` does.
    """
    counts = rows_per_expert(T, K, E, ep, imbalance)
    expert_of_row = np.repeat(np.arange(E, dtype=np.int32), counts)
    ids_PTK = np.empty((ep, T, K), dtype=np.int32)
    for source in range(ep):
        bits = np.random.PCG64(np.random.SeedSequence([seed, layer, source]))
        dealt_TK = expert_of_row[source::ep].reshape(K, T).T
        dealt_TK = dealt_TK[np.argsort(bits.random_raw(T), kind="stable")]
        slots_TK = np.argsort(bits.random_raw(T * K).reshape(T, K), axis=1, kind="stable")
        ids_PTK[source] = np.take_along_axis(dealt_TK, slots_TK, axis=1)
    return ids_PTK


def routing_sha256(layers: Iterable[Ids]) -> str:
    """SHA-256 over the ids of all layers in order, as little-endian int32."""
    digest = hashlib.sha256()
    for ids_PTK in layers:
        digest.update(np.ascontiguousarray(ids_PTK, dtype="<i4").tobytes())
    return digest.hexdigest()


def realised_imbalance(ids_PTK: Ids, E: int) -> float:
    """Rows that rank 0 receives over T*K, counted from the ids."""
    ep, T, K = ids_PTK.shape
    return float((ids_PTK < E // ep).sum() / (T * K))


def remote_rows(ids_PTK: Ids, E: int) -> Counts:
    """Rows that each rank sends to other ranks in one dispatch, [P]."""
    ep = ids_PTK.shape[0]
    destination = ids_PTK // (E // ep)
    remote_PTK = destination != np.arange(ep)[:, None, None]
    rows_P: Counts = remote_PTK.sum(axis=(1, 2))
    return rows_P
