"""Rank traces to the numbers of a report row. Pure functions over one attempt's traces, in rank order."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from moebench.cases.case import Case, Category
from moebench.cases.work import modeled_hbm_bytes, useful_flops
from moebench.rank.trace import RankTrace, Window
from moebench.reduce.schema import LONGEST_MS, SHORTEST_MS

GIB = 2**30


def slowest_rank_ms(times_ms: list[list[float]]) -> float:
    """One window, times of each rank's iterations [P][iterations]: the largest of the ranks' means."""
    return max(fmean(rank) for rank in times_ms)


def fastest_rank_ms(times_ms: list[list[float]]) -> float:
    """One window, times of each rank's iterations [P][iterations]: the smallest of the ranks' means."""
    return min(fmean(rank) for rank in times_ms)


def block_means(window_ms: Sequence[float]) -> list[float]:
    """Mean of the two windows of each block."""
    return [fmean(pair) for pair in zip(window_ms[0::2], window_ms[1::2], strict=True)]


def window_spread(window_ms: list[float]) -> float | None:
    """(max - min) / median over windows; None for a single window, which has no spread."""
    if len(window_ms) < 2:
        return None
    return (max(window_ms) - min(window_ms)) / median(window_ms)


@dataclass(frozen=True)
class Times:
    """Of one case, in ms. Maxima over ranks: forward and backward need not add up to the iteration."""

    window_ms: list[float]
    floor_ms: list[float]
    skew_ms: list[float]
    start_skew_ms: list[float] | None
    forward_ms: float
    backward_ms: float | None

    @property
    def iteration_ms(self) -> float:
        return fmean(self.window_ms)

    @property
    def spread(self) -> float | None:
        return window_spread(self.window_ms)


def case_times(traces: list[RankTrace]) -> Times:
    """Times of a case: for each window the slowest rank's mean, then the mean over windows."""
    iteration = _by_window(traces, lambda window: window.iteration_ms)
    forward = _by_window(traces, lambda window: window.forward_ms)
    backward = _by_window(traces, lambda window: window.backward_ms or [])
    slowest = [slowest_rank_ms(ranks) for ranks in iteration]
    fastest = [fastest_rank_ms(ranks) for ranks in iteration]
    return Times(
        window_ms=slowest,
        floor_ms=fastest,
        skew_ms=[slow - fast for slow, fast in zip(slowest, fastest, strict=True)],
        start_skew_ms=_start_skew_ms(traces),
        forward_ms=fmean(slowest_rank_ms(ranks) for ranks in forward),
        backward_ms=fmean(slowest_rank_ms(ranks) for ranks in backward) if backward[0][0] else None,
    )


def aa_window_ms(traces: list[RankTrace]) -> list[float]:
    """Slowest rank, of each window in which the case was timed as if it were another one."""
    return [
        slowest_rank_ms([window.iteration_ms for window in ranks])
        for ranks in zip(*(trace.aa_windows for trace in traces), strict=True)
    ]


def _by_window(traces: list[RankTrace], times: Callable[[Window], list[float]]) -> list[list[list[float]]]:
    """[windows][P][iterations]"""
    return [[times(window) for window in ranks] for ranks in zip(*(t.windows for t in traces), strict=True)]


def _start_skew_ms(traces: list[RankTrace]) -> list[float] | None:
    """How much later the last rank began each window than the first; None where ranks share no clock."""
    if len({trace.environment.get("host") for trace in traces}) > 1:
        return None
    skews = []
    for ranks in zip(*(trace.windows for trace in traces), strict=True):
        begun_ns = [window.begun_ns for window in ranks if window.begun_ns is not None]
        if len(begun_ns) < len(traces):
            return None
        skews.append((max(begun_ns) - min(begun_ns)) / 1e6)
    return skews


def first_invalid_time(traces: list[RankTrace]) -> str | None:
    """The first time that no clock could have measured, or that contradicts others, in words, or None."""
    for trace in traces:
        for kind, windows in (("window", trace.windows), ("A/A window", trace.aa_windows)):
            for number, window in enumerate(windows, 1):
                found = _invalid_time(window)
                if found is not None:
                    return f"rank {trace.rank}, {kind} {number}{found}"
    return None


def _invalid_time(window: Window) -> str | None:
    times = {
        "iteration_ms": window.iteration_ms,
        "forward_ms": window.forward_ms,
        "backward_ms": window.backward_ms or [],
    }
    for name, values in times.items():
        for iteration, value in enumerate(values, 1):
            if not SHORTEST_MS <= value <= LONGEST_MS:
                return (
                    f", iteration {iteration}: {name} is {value:g}, and a time must be finite and above 0: "
                    f"{SHORTEST_MS:g} to {LONGEST_MS:g} ms"
                )
    iterations_s = sum(window.iteration_ms) / 1e3
    if not math.isclose(window.seconds, iterations_s, rel_tol=1e-6):
        return f": seconds is {window.seconds:g}, and its iterations take {iterations_s:g} s"
    return None


def useful_tf_per_gpu(case: Case, iteration_ms: float) -> float:
    """Useful TFLOP/s of one GPU."""
    return useful_flops(case) / iteration_ms / 1e9


def modeled_hbm_gbps(case: Case, iteration_ms: float) -> float:
    """Modeled HBM bytes over time, 1e9 bytes per second."""
    return modeled_hbm_bytes(case) / iteration_ms / 1e6


def mean_gbps(traces: list[RankTrace], bytes_of: Callable[[Window], int]) -> float | None:
    """Mean over ranks of bytes per second over the rank's windows, 1e9 bytes per second.

    None at ep 1, where there is nobody to send to, and where a rank had no counter.
    """
    if len(traces) == 1 or any(trace.traffic_source is None for trace in traces):
        return None
    return fmean(
        sum(bytes_of(window) for window in trace.windows) / sum(window.seconds for window in trace.windows) / 1e9
        for trace in traces
    )


def peak_allocated_gib(traces: list[RankTrace]) -> float | None:
    """The largest peak over ranks, 2**30 bytes; None where a rank was refused the figure."""
    peak = _largest([trace.peak_allocated_bytes for trace in traces])
    return None if peak is None else peak / GIB


def peak_reserved_bytes(case: Case, traces: list[RankTrace]) -> int | None:
    """The largest reservation over ranks; only in packing on GPUs, whose allocator reserves."""
    if case.category is not Category.PACKING:
        return None
    return _largest([trace.peak_reserved_bytes for trace in traces])


def _largest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def tx_bytes_by_kind(traces: list[RankTrace]) -> dict[str, float]:
    """Counted bytes of one iteration by kind of traffic, mean over ranks."""
    kinds = sorted({kind for trace in traces for kind in trace.tx_bytes_by_kind})
    return {kind: fmean(trace.tx_bytes_by_kind.get(kind, 0) for trace in traces) for kind in kinds}


def replay_tx_bytes(traces: list[RankTrace]) -> float:
    """Counted bytes of one iteration that repeat a dispatch, mean over ranks: all kinds named `replay...`."""
    return sum(bytes_ for kind, bytes_ in tx_bytes_by_kind(traces).items() if kind.startswith("replay"))
