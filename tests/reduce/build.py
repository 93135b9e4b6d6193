"""Hand-made runs for tests: cases, rank traces of any time, plans and journals."""

from pathlib import Path
from typing import Any

from moebench.cases.case import Capacity, Case, Category, Measure, Mode, Pipeline, Precision
from moebench.cases.limits import limits
from moebench.cases.plan import Plan, Planned
from moebench.cases.routing import realised_imbalance, remote_rows, route, routing_sha256
from moebench.cases.shape import Shape
from moebench.cases.work import rows_per_rank
from moebench.launch.journal import Entry, Journal
from moebench.rank.trace import Check, RankTrace, Realised, Window, trace_path
from moebench.status import Status

SHAPE = Shape(T=8, D=32, E=4, K=2, F=16, S=1)
MEASURE = Measure(windows=2, iterations=2, warmups=0, max_warmups=0)
PIPELINES = {"mok": Pipeline.NATIVE, "dist_moe": Pipeline.STANDARD, "torch": Pipeline.EAGER}


def make_case(backend: str = "dist_moe", ep: int = 2, **changes: Any) -> Case:
    """A bf16 inference case of a single layer."""
    axes = {
        "mode": Mode.INFERENCE,
        "precision": Precision.BF16,
        "pipeline": PIPELINES.get(backend, Pipeline.EAGER),
        "category": Category.SINGLE_LAYER,
        "shape": SHAPE,
        "imbalance": 1.0,
        "layer_imbalances": (1.0,),
        "measure": MEASURE,
        "capacity": Capacity(),
    }
    return Case(backend=backend, ep=ep, **{**axes, **changes})


def make_packing(backend: str = "mok", ep: int = 2) -> Case:
    """A training case of two chained layers with profile A."""
    return make_case(
        backend,
        ep,
        mode=Mode.TRAINING,
        category=Category.PACKING,
        profile="A",
        layer_imbalances=(1.5, 0.5),
    )


def make_window(
    ms: list[float], *, training: bool = False, tx_bytes: int = 16_000, seconds: float | None = None
) -> Window:
    """A window whose iterations take `ms`, all of it forward, or half of it in training."""
    part = [value / 2 if training else value for value in ms]
    return Window(
        forward_ms=part,
        backward_ms=part if training else None,
        iteration_ms=ms,
        seconds=sum(ms) / 1e3 if seconds is None else seconds,
        tx_bytes=tx_bytes,
        rx_bytes=2 * tx_bytes,
    )


def make_realised(case: Case, rank: int) -> Realised:
    s = case.shape
    layers = [
        route(s.T, s.K, s.E, case.ep, imbalance, case.measure.seed, layer)
        for layer, imbalance in enumerate(case.layer_imbalances)
    ]
    return Realised(
        world_size=case.ep,
        routing_sha256=routing_sha256(layers),
        imbalance=[realised_imbalance(ids_PTK, s.E) for ids_PTK in layers],
        rows_received=[int(rows_P[rank]) for rows_P in rows_per_rank(case)],
        remote_rows_sent=[int(remote_rows(ids_PTK, s.E)[rank]) for ids_PTK in layers],
    )


def make_checks(case: Case, rank: int = 0, *, error: float | None = 0.002) -> list[Check]:
    return [
        Check(when=when, tensor=tensor, layer=layer, metric=metric, error=error, limit=limit)
        for when in ("before", "after")
        for (tensor, layer, metric), limit in limits(case, rank).items()
    ]


def make_trace(case: Case, rank: int, windows: list[list[float]] | None = None, **changes: Any) -> RankTrace:
    """A trace that passes: 2 ms an iteration, unless `windows` says else, in ms of each window's iterations."""
    measure = case.measure
    windows = windows or [[2.0] * measure.iterations] * measure.windows
    fields = {
        "attempt": 1,
        "status": Status.ACCEPTED,
        "phase": "done",
        "implementation": "portable",
        "realised": make_realised(case, rank),
        "windows": [make_window(ms, training=case.training) for ms in windows],
        "traffic_source": "transport",
        "tx_bytes_by_kind": {"dispatch": 1000, "combine": 1000},
        "memory_source": "rss",
        "peak_allocated_bytes": 2**30,
        "checks": make_checks(case, rank),
        "environment": {"device": "cpu", "hardware": "Test CPU", "collectives": "gloo", "cuda": None},
    }
    return RankTrace(case=case, case_id=case.id, rank=rank, **{**fields, **changes})


def make_traces(case: Case, windows: list[list[float]] | None = None, **changes: Any) -> list[RankTrace]:
    return [make_trace(case, rank, windows, **changes) for rank in range(case.ep)]


class RunFolder:
    """A run folder under construction."""

    def __init__(self, path: Path, cases: list[Case], unsupported: dict[str, str] | None = None) -> None:
        self.path = path
        self.journal = Journal(path)
        path.mkdir(parents=True)
        reasons = unsupported or {}
        plan = Plan(
            matrix="test",
            shape=SHAPE,
            measure=MEASURE,
            profiles={"A": [1.5, 0.5]},
            cases=[Planned(case=case, unsupported=reasons.get(case.id)) for case in cases],
        )
        (path / "plan.json").write_text(plan.model_dump_json())

    def deliver(self, traces: list[RankTrace]) -> None:
        for trace in traces:
            path = trace_path(self.path, trace.case_id, trace.attempt, trace.rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(trace.model_dump_json())

    def note(self, case: Case, status: Status | None = None, *, attempt: int = 1, **fields: Any) -> None:
        time = "2026-03-04T05:06:07.000+00:00"
        self.journal.add(Entry(time=time, case=case.id, attempt=attempt, status=status, **fields))

    def run(self, case: Case, windows: list[list[float]] | None = None, **changes: Any) -> None:
        """A case that ran to its end on all ranks."""
        self.note(case)
        self.deliver(make_traces(case, windows, **changes))
        self.note(case, Status.ACCEPTED)
