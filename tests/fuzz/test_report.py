"""Whatever a report file holds, it is shown or refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.fuzz.budget import examples
from tests.fuzz.mutate import files
from tests.fuzz.shown import assert_shows, assert_told
from tests.reference import PATH
from tests.show.build import row, sweep

from moebench.errors import MoebenchError
from moebench.reduce.load import load_report
from moebench.reduce.write import to_json

H200 = Path(__file__).parents[2] / "examples" / "h200.json"


def cut(path: Path, cases: slice, rejected: slice = slice(0)) -> dict[str, Any]:
    """A few rows of a report, so that a mutation often hits something that matters."""
    raw = json.loads(path.read_text())
    raw["cases"] = raw["cases"][cases]
    kept = {row["id"] for row in raw["cases"]}
    for key in ("pairs", "allPipelinePairs"):
        raw[key] = [pair for pair in raw[key] if {pair["mok"], pair["dist"]} <= kept]
    if "rejected" in raw:
        raw["rejected"] = raw["rejected"][rejected]
    return raw


def h200_pair() -> dict[str, Any]:
    """A workload that all three backends did, and one that failed."""
    raw = json.loads(H200.read_text())
    pair = raw["pairs"][0]
    torch = pair["mok"].replace("mok", "torch").replace("native", "eager")
    wanted = [row["id"] in (pair["mok"], pair["dist"], torch) for row in raw["cases"]]
    raw["cases"] = [row for row, want in zip(raw["cases"], wanted, strict=True) if want]
    return raw | {"pairs": [pair], "allPipelinePairs": raw["allPipelinePairs"][:1], "rejected": raw["rejected"][:1]}


def small() -> dict[str, Any]:
    """Every backend and every way in which a case can be missing, in few keys."""
    raw = json.loads(to_json(sweep()))
    shape = {"T": 8, "D": 64}
    raw["cases"] = [*raw["cases"][:4], *(row(name, 2.0, F=64, shape=shape) for name in ("mok", "dist_moe", "torch"))]
    return raw | {"rejected": raw["rejected"][:4]}


DOCUMENTS = [small(), small(), h200_pair(), cut(PATH, slice(3)), cut(PATH, slice(-3, None))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report") / "report.json"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_are_valid_before_anything_happens_to_them(path: Path, document: dict[str, Any]):
    path.write_text(json.dumps(document))
    report = load_report(path)
    assert report.cases
    assert_shows(report)


@examples(150)
@given(data=files(*DOCUMENTS))
def test_a_report_is_shown_or_refused_in_words(path: Path, data: bytes):
    path.write_bytes(data)
    try:
        report = load_report(path)
    except MoebenchError as error:
        assert_told(error, path)
    else:
        assert_shows(report)
