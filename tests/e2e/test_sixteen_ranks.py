"""Sixteen ranks on whatever cores there are: they share them, and start in one launch."""

import pytest
from tests.e2e.sweeping import moebench, report

pytestmark = pytest.mark.e2e


def test_sixteen_ranks_measure_every_mxfp8_pipeline(tmp_path):
    chosen = ["-k", "*-inference-*-single_layer-i1-*", "-k", "mok-training-*-single_layer-i4-*"]
    ended = moebench("sweep", "--ep", 16, "--precision", "mxfp8", *chosen, folder=tmp_path, seconds=400)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert "ep replaced by 16 in every block" in ended.stderr
    made = report((tmp_path / "runs" / "latest").resolve())
    assert {(row["backend"], row["pipeline"]) for row in made["cases"]} == {
        ("torch", "eager"),
        ("dist_moe", "staged"),
        ("dist_moe", "mega"),
        ("mok", "native"),
    }
    assert {row["ep"] for row in made["cases"]} == {16}
    assert len(made["cases"]) == 5
    assert [pair["mok"] for pair in made["pairs"]] == ["mok-inference-ep16-mxfp8-native-single_layer-i1-F128"]
