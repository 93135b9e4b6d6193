"""The rank traces of one attempt at a case, as far as they can be read."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moebench.rank.trace import SCHEMA_VERSION, RankTrace, trace_path


@dataclass(frozen=True)
class Delivered:
    """What the ranks of one attempt left: traces in rank order, ranks without one, broken files in words."""

    traces: list[RankTrace]
    missing: list[int]
    broken: list[str]


def read_traces(run: Path, case_id: str, attempt: int, ranks: int) -> Delivered:
    """Read traces/<case id>/<attempt>/rank-<N>.json of every rank; a bad file is named, never raised."""
    traces, missing, broken = [], [], []
    for rank in range(ranks):
        path = trace_path(run, case_id, attempt, rank)
        name = path.relative_to(run)
        try:
            trace = _read(path)
        except FileNotFoundError:
            missing.append(rank)
            continue
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            broken.append(f"{name}: {_why(error)}")
            continue
        if (trace.case_id, trace.rank, trace.attempt) != (case_id, rank, attempt):
            broken.append(f"{name}: it is of {trace.case_id}, rank {trace.rank}, attempt {trace.attempt}")
        elif trace.schema_version > SCHEMA_VERSION:
            broken.append(f"{name}: schema_version {trace.schema_version} is newer than {SCHEMA_VERSION}")
        else:
            traces.append(trace)
    return Delivered(traces, missing, broken)


def attempts_of(run: Path, case_id: str) -> list[int]:
    """Attempts that have a folder of traces."""
    folder = run / "traces" / case_id
    if not folder.is_dir():
        return []
    numbers = [entry.name for entry in folder.iterdir() if re.fullmatch(r"[1-9][0-9]{0,5}", entry.name)]
    return sorted(int(name) for name in numbers if any(folder.glob(f"{name}/rank-*.json")))


def _read(path: Path) -> RankTrace:
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    text = path.read_text(encoding="utf-8")
    try:
        return RankTrace.model_validate_json(text)
    except ValidationError:
        return RankTrace.model_validate_json(json.dumps(_null_times_as_nan(json.loads(text))))


def _null_times_as_nan(raw: Any) -> Any:
    """A rank writes a time that is not finite as null. Read it as NaN, so that it is judged as a time."""
    windows = raw.get("windows") if isinstance(raw, dict) else None
    for window in windows if isinstance(windows, list) else []:
        if not isinstance(window, dict):
            continue
        for key in ("forward_ms", "backward_ms", "iteration_ms"):
            if isinstance(window.get(key), list):
                window[key] = [math.nan if value is None else value for value in window[key]]
        if "seconds" in window and window["seconds"] is None:
            window["seconds"] = math.nan
    return raw


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return str(error) or type(error).__name__
