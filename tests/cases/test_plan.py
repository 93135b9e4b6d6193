"""The plan of a run folder is read back whole, or refused with what is wrong in it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.reduce.build import RunFolder, make_case

from moebench.cases.plan import load_plan
from moebench.errors import UsageError

CASES = [make_case("mok"), make_case("dist_moe")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return RunFolder(tmp_path / "run", CASES).path / "plan.json"


def case(raw: dict[str, Any]) -> dict[str, Any]:
    """The second case of a plan."""
    found: dict[str, Any] = raw["cases"][1]["case"]
    return found


def test_plan_is_read_back(path: Path):
    assert [planned.case for planned in load_plan(path.parent).cases] == CASES


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda raw: raw["cases"].append(raw["cases"][0]), f"{CASES[0].id} is there 2 times"),
        (lambda raw: raw["cases"].clear(), "`cases` is empty"),
        (lambda raw: raw.update(schema_version=99), "schema_version 99 is newer than 1"),
        (lambda raw: raw["profiles"].update(A=[float("inf")]), "profiles.A.0: "),
        (lambda raw: raw["profiles"].update({"../A": [1.0]}), "profiles.../A.[key]: "),
        (lambda raw: case(raw).update(ep=3), "E=4 experts do not divide over ep=3 ranks"),
        (lambda raw: case(raw).update(layer_imbalances=[3.0]), "imbalance 3 is outside 0..2"),
        (lambda raw: case(raw).update(layer_imbalances=[]), "layer_imbalances: "),
        (lambda raw: case(raw).update(layer_imbalances=[1.0] * 1001), "layer_imbalances: "),
        (lambda raw: case(raw)["shape"].update(T=2**24, E=16, K=16), "ep*T*K=536870912 rows in a layer are more"),
        (lambda raw: case(raw).update(overridden=["__class__"]), "overridden.0: "),
        (lambda raw: case(raw).update(backend="x" * 81), "backend: "),
        (lambda raw: case(raw).update({"\x1b[2J" * 99: 1}), "\\x1b[2J\\x1b[2J"),
    ],
)
def test_plan_that_no_sweep_would_have_made_is_refused(path: Path, changed: Callable[[Any], Any], said: str):
    raw = json.loads(path.read_text())
    changed(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(UsageError) as error:
        load_plan(path.parent)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert message.isprintable()
    assert len(message) < 600
