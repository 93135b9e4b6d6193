"""An accepted case and its rank traces, made into a row of the report."""

from typing import Any

from moebench.cases.case import Case, Category, Measure
from moebench.cases.shape import Shape
from moebench.cases.work import logical_tx_bytes
from moebench.rank.trace import Check, RankTrace
from moebench.reduce import metrics
from moebench.reduce.schema import (
    CaseRow,
    CheckSummary,
    MeasureOverride,
    PairedWindows,
    Routing,
    ShapeOverride,
    Validation,
)
from moebench.reduce.stability import instabilities

REFERENCE = "fp32, experts one at a time, no all-to-all"


def case_row(case: Case, traces: list[RankTrace], shape: Shape, measure: Measure) -> CaseRow:
    """The row of an accepted case. `shape` and `measure` are those of the report's meta.

    Traces are of all ranks, in rank order, as `accept.judge` lets them through.
    """
    first, times = traces[0], metrics.case_times(traces)
    optional: dict[str, Any] = {}
    if case.category is Category.PACKING:
        optional["capacity"] = first.capacity
    if first.injected:
        optional["injected"] = first.injected
    return CaseRow(
        id=case.id,
        backend=case.backend,
        mode=str(case.mode),
        ep=case.ep,
        precision=str(case.precision),
        pipeline=str(case.pipeline),
        category=str(case.category),
        F=case.shape.F,
        imbalance=case.imbalance,
        profile=case.profile,
        layers=case.layers,
        iterationMS=times.iteration_ms,
        forwardMS=times.forward_ms,
        backwardMS=times.backward_ms,
        usefulTFPerGPU=metrics.useful_tf_per_gpu(case, times.iteration_ms),
        **_rates(case, traces, times.iteration_ms),
        modeledHBMGBps=metrics.modeled_hbm_gbps(case, times.iteration_ms),
        peakAllocatedGiB=metrics.peak_allocated_gib(traces),
        peakReservedBytes=metrics.peak_reserved_bytes(case, traces),
        fastMath=first.fast_math,
        sharedSchedule=first.shared_schedule,
        **optional,
        implementation=first.implementation,
        estimator=first.estimator,
        emulated=first.emulated,
        hostKnownSplits=first.host_known_splits,
        cudaGraph=first.cuda_graph,
        l2Flush=case.measure.l2_flush and first.environment.get("device") == "cuda",
        trafficSource=first.traffic_source,
        memorySource=first.memory_source,
        windowMS=times.window_ms,
        floorMS=times.floor_ms,
        skewMS=times.skew_ms,
        startSkewMS=times.start_skew_ms,
        spread=times.spread,
        logicalTXBytes=logical_tx_bytes(case),
        replayTXBytes=metrics.replay_tx_bytes(traces),
        txBytesByKind=metrics.tx_bytes_by_kind(traces),
        validation=_validation(traces),
        routing=_routing(traces),
        **_pairing(traces),
        **_instability(traces, times.window_ms),
        **_overrides(case, shape, measure),
        environment=first.environment,
    )


def _pairing(traces: list[RankTrace]) -> dict[str, Any]:
    """Key `paired` of a case of a paired sweep; nothing otherwise."""
    alternation = traces[0].alternation
    if alternation is None:
        return {}
    found: dict[str, Any] = {
        "group": alternation.group,
        "blocks": alternation.blocks,
        "alternated": "windows" if alternation.together else "executions",
    }
    if traces[0].aa_windows:
        found["aaMS"] = metrics.aa_window_ms(traces)
    return {"paired": PairedWindows(**found)}


def _instability(traces: list[RankTrace], window_ms: list[float]) -> dict[str, Any]:
    """Key `unstable` of a case whose windows, or warm-up, did not settle; nothing otherwise."""
    found = [f"{finding.kind}: {finding.message}" for finding in instabilities(window_ms)]
    if any(trace.settled is False for trace in traces):
        found.append(f"warm-up: iteration times still drifted after {traces[0].warmups} iterations")
    return {"unstable": found} if found else {}


def _rates(case: Case, traces: list[RankTrace], iteration_ms: float) -> dict[str, Any]:
    """Bytes per second by the traces' traffic source; where it is `logical`, the formula's bytes over the time."""
    source = traces[0].traffic_source
    if source == "logical" and case.ep > 1:
        modeled = logical_tx_bytes(case) / iteration_ms / 1e6
        return {"meanTXGBps": modeled, "meanRXGBps": modeled}
    return {
        "meanTXGBps": metrics.mean_gbps(traces, lambda window: window.sent_bytes(source)),
        "meanRXGBps": metrics.mean_gbps(traces, lambda window: window.received_bytes(source)),
    }


def _overrides(case: Case, shape: Shape, measure: Measure) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    axes = [axis for axis in ("T", "D", "E", "K", "S") if getattr(case.shape, axis) != getattr(shape, axis)]
    if axes:
        overrides["shape"] = ShapeOverride(**{axis: getattr(case.shape, axis) for axis in axes})
    own, common = _counts(case.measure), _counts(measure)
    if own != common:
        overrides["measure"] = MeasureOverride(**own)
    return overrides


def _counts(measure: Measure) -> dict[str, int]:
    return {
        "windows": measure.windows,
        "iterationsPerWindow": measure.iterations,
        "warmups": measure.warmups,
    }


def _validation(traces: list[RankTrace]) -> Validation:
    """For each tensor, metric and time of checking, the comparison that came nearest to its limit."""
    found: dict[tuple[str, str, str], list[tuple[float, int, Check]]] = {}
    for trace in traces:
        for check in trace.checks:
            if check.error is not None:
                key = (check.when, check.tensor, check.metric)
                found.setdefault(key, []).append((check.error - check.limit, trace.rank, check))
    checks = []
    for (when, tensor, metric), comparisons in found.items():
        _, rank, worst = max(comparisons, key=lambda comparison: comparison[0])
        checks.append(
            CheckSummary(
                when=when,
                tensor=tensor,
                metric=metric,
                error=worst.error or 0.0,
                limit=worst.limit,
                rank=rank,
                layer=worst.layer,
                comparisons=len(comparisons),
            )
        )
    return Validation(reference=REFERENCE, ranks=len(traces), checks=checks)


def _routing(traces: list[RankTrace]) -> Routing:
    realised = [trace.realised for trace in traces if trace.realised is not None]
    received = [rows for rank in realised for rows in rank.rows_received]
    return Routing(
        sha256=realised[0].routing_sha256,
        imbalance=realised[0].imbalance,
        maxRowsReceived=max(received),
        minRowsReceived=min(received),
        remoteRowsSent=sum(sum(rank.remote_rows_sent) for rank in realised),
    )
