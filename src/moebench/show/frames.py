"""A report as typed pandas frames. Columns have the report's key names; nullable dtypes keep gaps as <NA>."""

from typing import Any

import pandas as pd

from moebench.reduce.pairs import pairing, torch_ratios
from moebench.reduce.schema import CaseRow, Report
from moebench.show.derived import tokens_per_s, workload_name

CASE_DTYPES = {
    "id": "string",
    "workload": "string",
    "backend": "string",
    "mode": "string",
    "ep": "Int64",
    "precision": "string",
    "pipeline": "string",
    "category": "string",
    "T": "Int64",
    "D": "Int64",
    "E": "Int64",
    "K": "Int64",
    "F": "Int64",
    "imbalance": "Float64",
    "profile": "string",
    "layers": "Int64",
    "iterationMS": "Float64",
    "forwardMS": "Float64",
    "backwardMS": "Float64",
    "usefulTFPerGPU": "Float64",
    "tokensPerSPerGPU": "Float64",
    "meanTXGBps": "Float64",
    "meanRXGBps": "Float64",
    "modeledHBMGBps": "Float64",
    "peakAllocatedGiB": "Float64",
    "peakReservedBytes": "Int64",
    "fastMath": "boolean",
    "sharedSchedule": "string",
    "implementation": "string",
    "estimator": "string",
    "emulated": "boolean",
    "hostKnownSplits": "boolean",
    "trafficSource": "string",
    "memorySource": "string",
    "spread": "Float64",
    "logicalTXBytes": "Float64",
    "replayTXBytes": "Float64",
    "vsTorch": "Float64",
}
"""`workload` is the id without backend and pipeline; T, D, E, K are the case's own, from `shape` or meta;
`vsTorch` is how many times faster than the torch baseline of its workload a case is."""

PAIR_DTYPES = {
    "workload": "string",
    "mode": "string",
    "ep": "Int64",
    "precision": "string",
    "category": "string",
    "F": "Int64",
    "imbalance": "Float64",
    "profile": "string",
    "layers": "Int64",
    "dist": "string",
    "mok": "string",
    "distPipeline": "string",
    "distMS": "Float64",
    "mokMS": "Float64",
    "distFasterBy": "Float64",
    "distPipelines": "Int64",
    "distVsTorch": "Float64",
    "mokVsTorch": "Float64",
}
"""`distFasterBy` is mokMS / distMS; `distPipelines` says of how many pipelines `dist` is the fastest;
`...VsTorch` is torch ms over the backend's ms."""


def cases_frame(report: Report) -> pd.DataFrame:
    """One row an accepted case, in report order."""
    ratios = torch_ratios(report)
    return _frame([_case(report, row, ratios) for row in report.cases], CASE_DTYPES)


def _case(report: Report, row: CaseRow, ratios: dict[str, float]) -> dict[str, Any]:
    own = row.shape.model_dump(exclude_unset=True) if row.shape else {}
    derived = {
        "workload": workload_name(row),
        "tokensPerSPerGPU": tokens_per_s(report.meta, row),
        "vsTorch": ratios.get(row.id),
        **{axis: own.get(axis, getattr(report.meta, axis)) for axis in ("T", "D", "E", "K")},
    }
    return {key: derived[key] if key in derived else getattr(row, key) for key in CASE_DTYPES}


def pairs_frame(report: Report) -> pd.DataFrame:
    """One row a pair, recomputed from the cases, sorted by mok id."""
    ratios = torch_ratios(report)
    shared = ("mode", "ep", "precision", "category", "F", "imbalance", "profile", "layers")
    return _frame(
        [
            {
                "workload": workload_name(match.mok),
                **{key: getattr(match.mok, key) for key in shared},
                "dist": match.dist.id,
                "mok": match.mok.id,
                "distPipeline": match.dist.pipeline,
                "distMS": match.dist.iterationMS,
                "mokMS": match.mok.iterationMS,
                "distFasterBy": match.speedup,
                "distPipelines": len(match.all_dist),
                "distVsTorch": ratios.get(match.dist.id),
                "mokVsTorch": ratios.get(match.mok.id),
            }
            for match in pairing(report).matches
        ],
        PAIR_DTYPES,
    )


def _frame(rows: list[dict[str, Any]], dtypes: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(dtypes), dtype=object).astype(dtypes)
