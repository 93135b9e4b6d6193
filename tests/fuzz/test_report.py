"""Whatever a report file holds, it is shown or refused in words."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.fuzz.budget import examples
from tests.fuzz.mutate import as_json, assert_survives, files
from tests.fuzz.shown import assert_prints, assert_shows, assert_told
from tests.reference import PATH
from tests.show.build import row, sweep

from moebench.errors import MoebenchError
from moebench.reduce.comparisons import compare_groups
from moebench.reduce.load import load_report
from moebench.reduce.pairs import pairing
from moebench.reduce.schema import CaseRow, Report
from moebench.reduce.write import to_json

H200 = Path(__file__).parents[2] / "examples" / "h200.json"


def cut(path: Path, cases: slice) -> dict[str, Any]:
    """A few rows of a report, so that a mutation often hits something that matters."""
    raw = json.loads(path.read_text())
    raw["cases"] = raw["cases"][cases]
    kept = {case["id"] for case in raw["cases"]}
    for key in ("pairs", "allPipelinePairs"):
        raw[key] = [pair for pair in raw[key] if {pair["mok"], pair["dist"]} <= kept]
    return raw


def h200_pair() -> dict[str, Any]:
    """A workload that all three backends did, mok first, and one that failed."""
    raw = json.loads(H200.read_text())
    pair = raw["pairs"][0]
    torch = pair["mok"].replace("mok", "torch").replace("native", "eager")
    case_of = {case["id"]: case for case in raw["cases"]}
    return raw | {
        "cases": [case_of[case_id] for case_id in (pair["mok"], pair["dist"], torch)],
        "pairs": [pair],
        "allPipelinePairs": raw["allPipelinePairs"][:1],
        "rejected": raw["rejected"][:1],
    }


def small() -> dict[str, Any]:
    """Every backend and every way in which a case can be missing, in few keys; half of it was timed in blocks."""
    raw = json.loads(to_json(sweep()))
    blocks = {"shape": {"T": 8, "D": 64}, "windowMS": [2.0] * 12, "paired": in_blocks(6)}
    own = [row(name, 2.0, F=64, **blocks) for name in ("mok", "dist_moe", "torch")]
    return compared(raw | {"cases": [*raw["cases"][:4], *own], "rejected": raw["rejected"][:4]})


def in_blocks(blocks: int) -> dict[str, Any]:
    return {"group": "run/001/1", "blocks": blocks, "alternated": "windows", "aaMS": [2.0] * 2 * blocks}


def compared(raw: dict[str, Any]) -> dict[str, Any]:
    found = compare_groups(Report.model_validate(raw).cases)
    return raw | {
        "comparisons": [one.model_dump() for one in found.comparisons],
        "floors": [one.model_dump() for one in found.floors],
    }


REQUIRED = [key for key, field in CaseRow.model_fields.items() if field.is_required()]
PAIRED_BY = ["routing", "estimator", "implementation", "environment", "shape", "windowMS", "paired"]


def one_of_each() -> dict[str, Any]:
    """A pair and its baseline: the mok row with every key that there is, the others with what they need."""
    raw = h200_pair()
    for case in raw["cases"]:
        case["environment"] = {"device": "cuda", "hardware": "H200", "host": "here", "gpu_shared_by": 1, "note": 1}
        del case["validation"]
        for key in ("floorMS", "skewMS", "startSkewMS"):
            case[key] = [1.0]
        case |= {"windowMS": [1.0, 1.0], "paired": in_blocks(1)}
    mok, dist, torch = raw["cases"]
    torch = {key: torch[key] for key in REQUIRED}
    raw["cases"] = [mok, {key: dist[key] for key in (*REQUIRED, *PAIRED_BY)}, torch]
    raw["meta"]["profiles"] = {"A": [1.0]}
    return raw


DOCUMENTS = [small(), small(), one_of_each(), h200_pair(), cut(PATH, slice(3)), cut(PATH, slice(-3, None))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report") / "report.json"


def told_or_shown(path: Path, check: Callable[[Report], None] = assert_shows) -> None:
    try:
        report = load_report(path)
    except MoebenchError as error:
        assert_told(error, path)
    else:
        check(report)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_are_valid_before_anything_happens_to_them(path: Path, document: dict[str, Any]):
    path.write_text(json.dumps(document))
    report = load_report(path)
    assert report.cases
    assert_shows(report)


def test_no_single_accident_to_a_report_is_fatal(path: Path):
    document = one_of_each()
    assert compared(document)["comparisons"]
    assert pairing(Report.model_validate(document)).matches

    def check(changed: Any) -> None:
        path.write_bytes(as_json(changed))
        told_or_shown(path, assert_prints)

    assert_survives(document, check)


@examples(80)
@given(data=files(*DOCUMENTS))
def test_a_report_is_shown_or_refused_in_words(path: Path, data: bytes):
    path.write_bytes(data)
    told_or_shown(path)
