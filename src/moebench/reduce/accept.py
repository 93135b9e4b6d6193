"""Whether an execution is accepted. Every refusal says what was found and what would have passed."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from moebench.cases.case import Case
from moebench.cases.limits import limits
from moebench.cases.routing import remote_rows, route, routing_sha256
from moebench.cases.work import rows_per_rank
from moebench.inert import quoted
from moebench.rank.trace import RankTrace, Realised
from moebench.reduce.metrics import block_means, case_times, first_invalid_time, window_spread
from moebench.reduce.traces import Delivered
from moebench.status import Reason, Status

THROTTLE_KEY = "throttle_reasons"
"""Key of a trace's environment: all NVML clock event bits that were seen while its windows ran."""


@dataclass(frozen=True)
class Outcome:
    """How one case ended. `traces` are all ranks' traces if it was accepted, else empty."""

    status: Status
    reason: Reason | None = None
    message: str | None = None
    traces: list[RankTrace] = field(default_factory=list)
    log: str | None = None
    """The last words of the rank that ended the case early."""


def judge(case: Case, delivered: Delivered) -> Outcome:
    """Decide over all ranks' traces of one attempt."""
    ended = _ended_early(delivered.traces)
    if ended is not None:
        return ended
    for reason, finding in _FINDINGS.items():
        message = finding(case, delivered)
        if message is not None:
            return Outcome(Status.REJECTED, reason, message)
    return Outcome(Status.ACCEPTED, traces=delivered.traces)


def _ended_early(traces: list[RankTrace]) -> Outcome | None:
    """What a rank that did not finish says: its own failure explains more than a peer's absence."""
    worst = {Status.FAILED: 0, Status.REJECTED: 1, Status.UNSUPPORTED: 2, Status.NOT_RUN: 3}
    ended = [trace for trace in traces if trace.status is not Status.ACCEPTED]
    if not ended:
        return None
    trace = min(ended, key=lambda t: (worst[t.status], _failed_check(t) is None, _tells_of_a_peer(t)))
    failed_check = _failed_check(trace) if trace.reason is Reason.INCORRECT else None
    said = f"rank {trace.rank}, {trace.phase}: {trace.message or 'ended without a message'}"
    return Outcome(trace.status, trace.reason, failed_check or said, log=trace.stack)


def _tells_of_a_peer(trace: RankTrace) -> bool:
    return trace.message is None or "could not go on" in trace.message


def _incomplete(case: Case, delivered: Delivered) -> str | None:
    came = f"{len(delivered.traces)} of {case.ep} ranks delivered a trace"
    if delivered.broken:
        return f"{came}; cannot be read: {delivered.broken[0]}"
    if delivered.missing:
        return f"{came}; missing: rank {', '.join(map(str, delivered.missing))}"
    return _first(_missing_samples(case, trace) for trace in delivered.traces)


def _missing_samples(case: Case, trace: RankTrace) -> str | None:
    measure = case.measure
    if len(trace.windows) != measure.windows:
        return f"rank {trace.rank}: {len(trace.windows)} windows, asked for {measure.windows}"
    if measure.paired and trace.alternation is None:
        return f"rank {trace.rank}: its windows did not alternate with those of other cases, as asked for"
    if len(trace.aa_windows) not in (0, measure.windows):
        return f"rank {trace.rank}: {len(trace.aa_windows)} A/A windows, asked for {measure.windows}"
    for number, window in enumerate([*trace.windows, *trace.aa_windows], 1):
        lists = {"iteration_ms": window.iteration_ms, "forward_ms": window.forward_ms}
        if case.training:
            lists["backward_ms"] = window.backward_ms or []
        for name, values in lists.items():
            if len(values) != measure.iterations:
                return (
                    f"rank {trace.rank}, window {number}: {name} of {len(values)} iterations, "
                    f"asked for {measure.iterations}"
                )
    return None


def _wrong_workload(case: Case, delivered: Delivered) -> str | None:
    if delivered.surplus:
        names = ", ".join(map(quoted, delivered.surplus[:3]))
        return f"more ranks ran than the {case.ep} that the case has: there is {names}"
    first = delivered.traces[0]
    return _first(
        _other_case(case, trace) or _other_rank(first, trace) or _other_work(case, trace) for trace in delivered.traces
    )


def _other_case(case: Case, trace: RankTrace) -> str | None:
    asked, did = case.model_dump(), trace.case.model_dump()
    for key, value in asked.items():
        if did[key] != value and key != "unsupported":
            return f"rank {trace.rank} ran {key} {did[key]}, the plan asks for {value}"
    return None


def _other_rank(first: RankTrace, trace: RankTrace) -> str | None:
    for key in (
        "implementation",
        "estimator",
        "traffic_source",
        "memory_source",
        "emulated",
        "fast_math",
        "alternation",
    ):
        one, other = getattr(first, key), getattr(trace, key)
        if one != other:
            return f"{key} is {other} on rank {trace.rank} and {one} on rank {first.rank}"
    return None


def _other_work(case: Case, trace: RankTrace) -> str | None:
    did = trace.realised
    if did is None:
        return f"rank {trace.rank} did not record the workload that it ran"
    for name, realised, requested in _realised_and_requested(case, trace.rank, did):
        if realised != requested:
            return f"rank {trace.rank}: {name} was {realised}, asked for {requested}"
    return None


def _realised_and_requested(case: Case, rank: int, did: Realised) -> Iterable[tuple[str, Any, Any]]:
    rows_P = rows_per_rank(case)
    balanced = case.shape.T * case.shape.K
    yield "the number of ranks", did.world_size, case.ep
    yield (
        "the imbalance of each layer",
        [round(value, 9) for value in did.imbalance],
        [round(float(rows[0]) / balanced, 9) for rows in rows_P],
    )
    yield "the rows received in each layer", did.rows_received, [int(rows[rank]) for rows in rows_P]
    remote = [int(rows) for rows in planned_remote_rows(case)[rank]]
    yield "the rows sent to other ranks in each layer", did.remote_rows_sent, remote
    yield "the routing's SHA-256", did.routing_sha256, planned_sha256(case)


def planned_sha256(case: Case) -> str:
    """SHA-256 of the routing that the case asks for."""
    return _routing(case)[0]


def planned_remote_rows(case: Case) -> list[tuple[int, ...]]:
    """Rows that each rank sends to other ranks in each layer, [P][L]."""
    return _routing(case)[1]


def _routing(case: Case) -> tuple[str, list[tuple[int, ...]]]:
    s = case.shape
    return _routed(s.T, s.K, s.E, case.ep, case.layer_imbalances, case.measure.seed)


@lru_cache(maxsize=1024)
def _routed(
    T: int, K: int, E: int, ep: int, imbalances: tuple[float, ...], seed: int
) -> tuple[str, list[tuple[int, ...]]]:
    layers = [route(T, K, E, ep, imbalance, seed, layer) for layer, imbalance in enumerate(imbalances)]
    remote_LP = [remote_rows(ids_PTK, E) for ids_PTK in layers]
    return routing_sha256(layers), [tuple(int(rows_P[rank]) for rows_P in remote_LP) for rank in range(ep)]


def _incorrect(case: Case, delivered: Delivered) -> str | None:
    return _first(
        _failed_check(trace) or _unchecked(case, trace) or _other_limit(case, trace) for trace in delivered.traces
    )


def _other_limit(case: Case, trace: RankTrace) -> str | None:
    """Every check that the case asks for must be there, before and after timing, with the limit it asks for."""
    done = {(c.when, c.tensor, c.layer, c.metric): c.limit for c in trace.checks}
    for (tensor, layer, metric), limit in limits(case, trace.rank).items():
        for when in ("before", "after"):
            used = done.get((when, tensor, layer, metric))
            if used is None or not math.isclose(used, limit, rel_tol=1e-6):
                what = f"{metric} of {tensor}" + ("" if layer is None else f" of layer {layer}")
                found = "was not checked" if used is None else f"was checked with limit {used:g}"
                return f"rank {trace.rank}: {what} {found} {when} timing; the limit is {limit:g}"
    return None


def _failed_check(trace: RankTrace) -> str | None:
    for check in trace.checks:
        if not check.passed:
            return f"rank {trace.rank}: {check.in_words()}"
    return None


def _unchecked(case: Case, trace: RankTrace) -> str | None:
    for when in ("before", "after"):
        checked = {check.tensor for check in trace.checks if check.when == when}
        if "y" not in checked:
            return f"rank {trace.rank}: y was not checked {when} timing, so it is not known to be right"
        if case.training and checked == {"y"}:
            return f"rank {trace.rank}: no gradient was checked {when} timing"
    return None


def _invalid_timing(case: Case, delivered: Delivered) -> str | None:
    return first_invalid_time(delivered.traces)


def _throttled(case: Case, delivered: Delivered) -> str | None:
    for trace in delivered.traces:
        seen = trace.environment.get(THROTTLE_KEY)
        refused = seen & case.measure.throttle_bits if isinstance(seen, int) else 0
        if refused:
            return (
                f"rank {trace.rank}: the GPU was slowed by its hardware or heat while it was timed "
                f"(NVML bits {refused:#x}, none of {case.measure.throttle_bits:#x} allowed)"
            )
    return None


def _spread(case: Case, delivered: Delivered) -> str | None:
    """Of windows that alternate with others' the two of a block differ by design: what ran before them does."""
    limit, values, of = case.measure.max_window_spread, case_times(delivered.traces).window_ms, "windows"
    if case.measure.paired:
        values, of = block_means(values), "blocks"
    spread = window_spread(values)
    if limit is None or spread is None or spread <= limit:
        return None
    shown = ", ".join(f"{value:.4g}" for value in values)
    return f"spread over {of} is {spread:.4g}, limit {limit:g}: {of} of {shown} ms"


def _first(messages: Iterable[str | None]) -> str | None:
    return next((message for message in messages if message is not None), None)


_FINDINGS: dict[Reason, Callable[[Case, Delivered], str | None]] = {
    Reason.INCOMPLETE: _incomplete,
    Reason.WRONG_WORKLOAD: _wrong_workload,
    Reason.INCORRECT: _incorrect,
    Reason.INVALID_TIMING: _invalid_timing,
    Reason.THROTTLED: _throttled,
    Reason.SPREAD: _spread,
}
"""In this order: each may rely on those before it having found nothing."""
