"""Reports and consoles for tests of what is shown."""

import io
from typing import Any

from tests.reference import PATH

from moebench.reduce.load import load_report
from moebench.reduce.schema import Report
from moebench.show.console import make_console
from moebench.show.summary import print_pairs, print_report

META = {"hardware": "Test CPU", "reportDate": "2026-03-04", "T": 64, "D": 128, "E": 16, "K": 2, "F": 128}
PIPELINES = {"torch": "eager", "mok": "native"}


def row(backend: str, ms: float, pipeline: str | None = None, **keys: Any) -> dict[str, Any]:
    made = {
        "backend": backend, "mode": "inference", "ep": 4, "precision": "mxfp8",
        "pipeline": pipeline or PIPELINES.get(backend, "staged"), "category": "single_layer", "F": 128,
        "imbalance": 1.0, "profile": None, "layers": 1, "iterationMS": ms, "forwardMS": ms,
        "usefulTFPerGPU": 0.0123, "meanTXGBps": 1.5, "meanRXGBps": 1.25, "modeledHBMGBps": 3.0,
        "peakAllocatedGiB": 0.5, "implementation": "portable", "emulated": True, "trafficSource": "transport",
        "environment": {"device": "cpu", "hardware": "Test CPU"}, **keys,
    }  # fmt: skip
    made["id"] = "-".join(
        str(made[key]) for key in ("backend", "mode", "ep", "precision", "pipeline", "category", "imbalance", "F")
    )
    return made


def sweep() -> Report:
    """All three backends with two dist_moe pipelines, and every way in which a case can be missing."""
    return report(
        *(row(backend, ms, pipeline, imbalance=imbalance)
          for imbalance in (1.0, 2.0)
          for backend, ms, pipeline in (("torch", 4.0, None), ("dist_moe", 3.0, "mega"),
                                        ("dist_moe", 2.0, "staged"), ("mok", 2.5, None))),
        row("mok", 9.0, precision="bf16"),
        rejected=[
            {"id": "mok-x-i4", "status": "rejected", "reason": "spread", "message": "spread is 0.5, limit 0.1"},
            {"id": "mok-x-i8", "status": "failed", "reason": "crashed", "message": "rank 1 exited with code -9"},
            {"id": "mok-x-i9", "status": "not-run", "message": "the time budget of 60 s was spent"},
            *({"id": f"mok-inference-ep{ep}-F128", "status": "unsupported", "message": f"{ep} ranks, 2 GPUs here"}
              for ep in range(3, 103)),
        ],
    )  # fmt: skip


def report(*rows: dict[str, Any], meta: dict[str, Any] | None = None, **keys: Any) -> Report:
    return Report.model_validate({"meta": {**META, **(meta or {})}, "cases": list(rows), **keys})


def published() -> Report:
    return load_report(PATH)


def shown(report: Report, width: int, *, encoding: str = "utf-8", only_pairs: bool = False) -> str:
    """The text that a file or pipe of this width and encoding receives."""
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, newline="")
    (print_pairs if only_pairs else print_report)(report, make_console(file=stream, width=width))
    stream.flush()
    return buffer.getvalue().decode(encoding)
