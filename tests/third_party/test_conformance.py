"""What the author of a backend runs to see whether it is right. Copy it, and change the name of the class."""

from pathlib import Path

import pytest
from tests.e2e.sweeping import ROOT, moebench, report, traces

pytestmark = pytest.mark.e2e

MINE = "tests.third_party.ring_moe:RingMoe"
CASES = ["*-ep1-*", "*-ep2-*-packing-*", "*-ep2-*-i0-F32", "*-ep2-*-i0.35-F32", "*-ep2-*-T1", "*-ep2-*-F96"]
"""A part of the matrix, to be short. Leave it out to run all of it."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Run in a folder that holds the module, without PYTHONPATH, as a kernel author starts it."""
    folder = tmp_path_factory.mktemp("ring_moe")
    module = Path("tests", "third_party", "ring_moe.py")
    (folder / module).parent.mkdir(parents=True)
    (folder / module).write_text((ROOT / module).read_text())
    chosen = [flag for glob in CASES for flag in ("-k", glob)]
    flags = ("--matrix", "conformance", "--backend", f"torch,{MINE}", "--precision", "bf16", *chosen)
    return folder / "run", moebench("sweep", *flags, "--out", "run", folder=folder, PYTHONPATH="")


def test_it_is_right_on_every_case(swept):
    run, ended = swept
    assert report(run)["rejected"] == []
    assert ended.code == 0, ended.stdout + ended.stderr


def test_its_cases_have_ids_of_their_own_beside_those_of_torch(swept):
    ids = {row["id"] for row in report(swept[0])["cases"]}
    mine = {id for id in ids if id.startswith("ring_moe-")}
    assert len(mine) == 12
    assert ids == mine | {id.replace("ring_moe-", "torch-") for id in mine}


def test_it_is_in_the_report_but_in_no_pair(swept):
    found = report(swept[0])
    assert (found["pairs"], found["allPipelinePairs"]) == ([], [])
    row = next(row for row in found["cases"] if row["backend"] == "ring_moe" and row["ep"] == 2)
    assert (row["implementation"], row["sharedSchedule"]) == ("portable", "serial")
    assert row["validation"]["checks"]
    shown = moebench("show", swept[0], folder=swept[0].parent, COLUMNS="160").stdout
    assert "ring_moe" in shown


def test_its_bytes_are_counted_by_kind(swept):
    """Each of 2 ranks gathers the 10 rows of the other, of 64 BF16 elements, and their 2 scores; sums are FP32."""
    for trace in traces(swept[0], "ring_moe-inference-ep2-bf16-eager-single_layer-i0-F32"):
        assert trace["tx_bytes_by_kind"] == {"metadata": 160, "dispatch": 1280 + 80, "combine": 2560}


def test_a_precision_that_it_lacks_is_said_before_anything_runs(swept):
    flags = ("--matrix", "conformance", "--backend", MINE, "--precision", "mxfp8")
    ended = moebench("sweep", *flags, folder=swept[0].parent)
    assert ended.code == 2
    assert f"no case is left with --backend {MINE} --precision mxfp8" in ended.stderr
