"""The rank traces of one attempt at a case, as far as they can be read."""

import json
import math
import os
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moebench.errors import UsageError
from moebench.inert import quoted
from moebench.rank.trace import SCHEMA_VERSION, RankTrace, trace_path
from moebench.reading import MIB, first_problem, first_unportable, read_user_file

MOST_BYTES = 512 * MIB


@dataclass(frozen=True)
class Delivered:
    """What the ranks of one attempt left. `traces` are in rank order."""

    traces: list[RankTrace]
    missing: list[int]
    broken: list[str]
    """Files that cannot be read, in words."""
    surplus: list[str] = field(default_factory=list)
    """Names of traces of ranks that the case does not have."""


def read_traces(run: Path, case_id: str, attempt: int, ranks: int) -> Delivered:
    """Read traces/<case id>/<attempt>/rank-<N>.json of every rank; a bad file is named, never raised."""
    traces, missing, broken = [], [], []
    left = _files(trace_path(run, case_id, attempt, 0).parent)
    for rank in range(ranks):
        path = trace_path(run, case_id, attempt, rank)
        name = path.relative_to(run)
        if path.name not in left:
            missing.append(rank)
            continue
        try:
            trace = _read(path)
        except ValidationError as error:
            broken.append(f"{name}: {first_problem(error)}")
            continue
        except UsageError as error:
            broken.append(str(error))
            continue
        except (ValueError, RecursionError) as error:
            broken.append(f"{name}: {quoted(error)}")
            continue
        if (trace.case_id, trace.rank, trace.attempt) != (case_id, rank, attempt):
            broken.append(f"{name}: it is of {quoted(trace.case_id)}, rank {trace.rank}, attempt {trace.attempt}")
        elif trace.schema_version > SCHEMA_VERSION:
            broken.append(f"{name}: schema_version {trace.schema_version} is newer than {SCHEMA_VERSION}")
        elif (found := first_unportable({"environment": trace.environment, "capacity": trace.capacity})) is not None:
            broken.append(f"{name}: {quoted(found[0])}: {found[2]}")
        else:
            traces.append(trace)
    planned = {trace_path(run, case_id, attempt, rank).name for rank in range(ranks)}
    return Delivered(traces, missing, broken, sorted(left - planned))


def _files(folder: Path) -> set[str]:
    """Names of the traces in a folder; none where there is no such folder."""
    try:
        return {name for name in os.listdir(folder) if fnmatchcase(name, "rank-*.json")}
    except OSError:
        return set()


def attempts_of(run: Path, case_id: str) -> list[int]:
    """Attempts that have a folder of traces."""
    folder = run / "traces" / case_id
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name) for name in names if re.fullmatch(r"[1-9][0-9]{0,5}", name) and _files(folder / name))


def _read(path: Path) -> RankTrace:
    text = read_user_file(path, MOST_BYTES, "a rank trace").decode()
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
