"""The published report that formulas are tested against; half of it, ep 16 and ep 32."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from moebench.cases.case import Case
from moebench.cases.expand import select
from moebench.cases.matrix import load_matrix

PATH = Path(__file__).parent / "data" / "gb300-ep16-ep32.json"


@cache
def published() -> dict[str, dict[str, Any]]:
    """The published cases by id, in their order."""
    return {row["id"]: row for row in json.loads(PATH.read_text())["cases"]}


@cache
def gb300() -> dict[str, Case]:
    """The cases of cases/gb300.toml by id, in their order."""
    return {case.id: case for case in select(load_matrix("gb300")).cases}
