"""Figures of a row made again, from what the row says or from its rank traces, with the inputs in words."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from moebench.cases.case import Case, Category, Mode, Pipeline, Precision
from moebench.cases.shape import Shape
from moebench.cases.work import WEIGHT_BYTES, layer_rows, logical_tx_bytes, modeled_hbm_bytes, useful_flops
from moebench.rank.trace import RankTrace, Window
from moebench.reduce import metrics
from moebench.reduce.schema import CaseRow, Meta

MOST_RANKS = 8
"""Whose own figures are told."""

Value = float | list[float] | dict[str, float] | None


@dataclass(frozen=True)
class Worked:
    """What the inputs, told in words, give."""

    inputs: str
    value: Value


def agrees(one: Any, other: Any) -> bool:
    """Equal but for rounding in the last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(agrees(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agrees, one, other))
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def case_of(meta: Meta, row: CaseRow) -> Case:
    """The case whose formulas a row's rates follow.

    Raises ValueError where moebench knows no such work, or the report does not say enough of it.
    """
    own = row.shape.model_dump(exclude_none=True) if row.shape else {}
    sizes = {
        "T": meta.T,
        "D": meta.D,
        "E": meta.E,
        "K": meta.K,
        "S": 1 if meta.sharedExperts is None else meta.sharedExperts,
    }
    imbalances: Sequence[float] = [row.imbalance]
    if row.profile is not None:
        imbalances = (meta.profiles or {}).get(row.profile, [])
    if len(imbalances) != row.layers:
        raise ValueError(f"meta.profiles does not have the {row.layers} layers of profile {row.profile}")
    return Case(
        backend=row.backend,
        mode=Mode(row.mode),
        ep=row.ep,
        precision=Precision(row.precision),
        pipeline=Pipeline(row.pipeline),
        category=Category(row.category),
        shape=Shape(F=row.F, **{axis: own.get(axis, size) for axis, size in sizes.items()}),
        imbalance=float(row.imbalance),
        profile=row.profile,
        layer_imbalances=tuple(float(imbalance) for imbalance in imbalances),
    )


def from_row(meta: Meta, row: CaseRow) -> dict[str, Worked]:
    """The figures that follow from others of the row. Those of formulas are left out where `case_of` fails."""
    found: dict[str, Worked] = {}
    if row.windowMS:
        windows = f"windowMS {numbers(row.windowMS)}"
        found["iterationMS"] = Worked(windows, fmean(row.windowMS))
        found["spread"] = Worked(windows, metrics.window_spread([float(ms) for ms in row.windowMS]))
        if row.floorMS and len(row.floorMS) == len(row.windowMS):
            skew = [slow - fast for slow, fast in zip(row.windowMS, row.floorMS, strict=True)]
            found["skewMS"] = Worked(f"{windows}; floorMS {numbers(row.floorMS)}", skew)
    if row.txBytesByKind is not None:
        replayed = {kind: bytes_ for kind, bytes_ in row.txBytesByKind.items() if kind.startswith("replay")}
        kinds = ", ".join(f"{kind} {number(bytes_)}" for kind, bytes_ in replayed.items())
        found["replayTXBytes"] = Worked(f"txBytesByKind: {kinds or 'none is named replay...'}", sum(replayed.values()))
    try:
        case = case_of(meta, row)
        layer_rows(case)
    except ValueError:
        return found
    return found | _by_formula(case, row)


def _by_formula(case: Case, row: CaseRow) -> dict[str, Worked]:
    s, ms = case.shape, f"iterationMS {number(row.iterationMS)}"
    sizes = f"K={s.K} S={s.S} T={s.T} D={s.D} F={s.F} L={case.layers} passes={case.passes}"
    active = [float((rows > 0).sum()) / case.ep for rows in layer_rows(case)]
    flops, hbm, sent = useful_flops(case), modeled_hbm_bytes(case), logical_tx_bytes(case)
    remote = case.layers * s.T * s.K * (case.ep - 1) / case.ep
    found = {
        "usefulTFPerGPU": Worked(
            f"{sizes}: {number(flops)} FLOPs; {ms}", metrics.useful_tf_per_gpu(case, row.iterationMS)
        ),
        "modeledHBMGBps": Worked(
            f"{sizes} A={numbers(active)} w={WEIGHT_BYTES[case.precision]:g}: {number(hbm)} bytes; {ms}",
            metrics.modeled_hbm_gbps(case, row.iterationMS),
        ),
        "logicalTXBytes": Worked(f"R={number(remote)} D={s.D}, {case.backend} {case.mode} {case.precision}", sent),
    }
    if row.trafficSource == "logical":
        rate = sent / row.iterationMS / 1e6 if case.ep > 1 else None
        found["meanTXGBps"] = found["meanRXGBps"] = Worked(f"logicalTXBytes {number(sent)}; {ms}", rate)
    return found


def from_traces(row: CaseRow, traces: list[RankTrace]) -> dict[str, Worked]:
    """The figures that only the traces of all ranks, in rank order, can give."""
    times = metrics.case_times(traces)
    found = {
        "windowMS": Worked(_extreme_ranks("slowest", traces, lambda w: w.iteration_ms, max), times.window_ms),
        "floorMS": Worked(_extreme_ranks("fastest", traces, lambda w: w.iteration_ms, min), times.floor_ms),
        "startSkewMS": Worked(f"begun_ns of {len(traces)} ranks", times.start_skew_ms),
        "forwardMS": Worked(_extreme_ranks("slowest", traces, lambda w: w.forward_ms, max), times.forward_ms),
        "peakAllocatedGiB": Worked(
            _of_ranks([_gib(trace.peak_allocated_bytes) for trace in traces]), metrics.peak_allocated_gib(traces)
        ),
        "txBytesByKind": Worked(f"tx_bytes_by_kind of {len(traces)} ranks", metrics.tx_bytes_by_kind(traces)),
    }
    if times.backward_ms is not None:
        slowest = _extreme_ranks("slowest", traces, lambda w: w.backward_ms or [], max)
        found["backwardMS"] = Worked(slowest, times.backward_ms)
    if row.category == Category.PACKING:
        reserved = [number(trace.peak_reserved_bytes) for trace in traces]
        found["peakReservedBytes"] = Worked(_of_ranks(reserved), metrics.peak_reserved_bytes(traces[0].case, traces))
    source = traces[0].traffic_source
    if source != "logical":
        for key, bytes_of in (
            ("meanTXGBps", lambda window: window.sent_bytes(source)),
            ("meanRXGBps", lambda window: window.received_bytes(source)),
        ):
            found[key] = Worked(_bytes_and_seconds(traces, bytes_of), metrics.mean_gbps(traces, bytes_of))
    return found


def _extreme_ranks(
    which: str,
    traces: list[RankTrace],
    times: Callable[[Window], list[float]],
    extreme: Callable[..., tuple[float, int]],
) -> str:
    """`slowest rank of each window: 1, 0; its mean: 51.34, 51.22`."""
    found = [
        extreme((fmean(times(window)), trace.rank) for trace, window in zip(traces, ranks, strict=True))
        for ranks in zip(*(trace.windows for trace in traces), strict=True)
    ]
    ranks, means = [rank for _, rank in found], [mean for mean, _ in found]
    return f"{which} rank of each window: {', '.join(map(str, ranks))}; its mean: {numbers(means)}"


def _bytes_and_seconds(traces: list[RankTrace], bytes_of: Callable[[Window], int]) -> str:
    totals = [
        f"{sum(map(bytes_of, trace.windows))} bytes in {number(sum(window.seconds for window in trace.windows))} s"
        for trace in traces
    ]
    return _of_ranks(totals)


def _of_ranks(told: list[str]) -> str:
    """`rank 0: x, rank 1: y`, of the first ranks."""
    more = f" and {len(told) - MOST_RANKS} ranks more" if len(told) > MOST_RANKS else ""
    return ", ".join(f"rank {rank}: {what}" for rank, what in enumerate(told[:MOST_RANKS])) + more


def _gib(size_bytes: int | None) -> str:
    return number(None if size_bytes is None else size_bytes / metrics.GIB)


def number(value: float | None) -> str:
    """Six significant digits, or all of a whole number."""
    if value is None:
        return "null"
    return f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def numbers(values: Sequence[float]) -> str:
    return ", ".join(map(number, values))
