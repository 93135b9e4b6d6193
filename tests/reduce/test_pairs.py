import json
from typing import Any

import pytest
from tests.reference import PATH

from moebench.reduce.load import load_report
from moebench.reduce.pairs import FASTER_BY, differing_pairs, geometric_means, pairing, torch_ratios
from moebench.reduce.schema import Report


def published() -> dict[str, Any]:
    return json.loads(PATH.read_text())


def test_published_pairs_are_found_again_exactly_and_in_order():
    report, raw = load_report(PATH), published()
    found = pairing(report)
    assert [pair.model_dump() for pair in found.pairs] == raw["pairs"]
    assert [pair.model_dump() for pair in found.all_pipeline_pairs] == raw["allPipelinePairs"]
    assert (len(found.pairs), len(found.all_pipeline_pairs), found.unpaired) == (22, 33, [])
    assert differing_pairs(report) == []


def test_shuffled_cases_give_the_same_pairs():
    raw = published()
    raw["cases"].reverse()
    assert [pair.mok for pair in pairing(Report.model_validate(raw)).pairs] == [pair["mok"] for pair in raw["pairs"]]


def row(backend: str, ms: float, pipeline: str = "native", **keys: Any) -> dict[str, Any]:
    axes = {"mode": "inference", "ep": 2, "precision": "bf16", "pipeline": pipeline, "category": "single_layer"}
    sizes = {"F": 16, "imbalance": 1.0, "profile": None, "layers": 1, "iterationMS": ms}
    made = {"backend": backend, **axes, **sizes, **keys}
    return {"id": f"{backend}-{'-'.join(str(made[key]) for key in (*axes, 'F'))}", **made}


def report(*rows: dict[str, Any], **keys: Any) -> Report:
    meta = {"T": 8, "D": 32, "E": 4, "K": 2, "F": 16}
    return Report.model_validate({"meta": meta, "cases": list(rows), **keys})


def test_fastest_pipeline_is_the_pair_and_all_are_listed_in_report_order():
    found = pairing(
        report(row("dist_moe", 3.0, "mega"), row("mok", 4.0), row("dist_moe", 2.0, "staged"), row("dist_moe", 5.0, "x"))
    )
    (match,) = found.matches
    assert match.dist.pipeline == "staged"
    assert match.speedup == 2.0
    assert [dist.pipeline for dist in match.all_dist] == ["mega", "staged", "x"]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"implementation": "portable"}, "implementation differs"),
        ({"estimator": "median"}, "estimator differs"),
        ({"routing": {"sha256": "a", "imbalance": [1.0], "maxRowsReceived": 1, "minRowsReceived": 1,
                      "remoteRowsSent": 1}}, "routing differs"),
        ({"shape": {"T": 4}}, "no "),
        ({"environment": {"hardware": "Other GPU"}}, "hardware differs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_cases_that_disagree_are_not_compared_and_the_reason_is_told(keys: dict[str, Any], reason: str):
    found = pairing(report(row("mok", 4.0), row("dist_moe", 2.0, **keys)))
    assert found.matches == []
    assert [entry.row.backend for entry in found.unpaired] == ["mok", "dist_moe"]
    assert all(entry.reason.startswith(reason) for entry in found.unpaired)
    assert len(pairing(report(row("mok", 4.0, **keys), row("dist_moe", 2.0, **keys))).matches) == 1


def test_shape_that_repeats_meta_is_the_shape_of_meta():
    assert len(pairing(report(row("mok", 4.0), row("dist_moe", 2.0, shape={"T": 8}))).matches) == 1


def test_pipeline_that_disagrees_is_left_out_of_a_pair_that_another_makes():
    found = pairing(
        report(row("mok", 4.0), row("dist_moe", 1.0, "mega", estimator="median"), row("dist_moe", 2.0, "s"))
    )
    assert [match.dist.pipeline for match in found.matches] == ["s"]
    assert [entry.row.pipeline for entry in found.unpaired] == ["mega"]


def test_case_without_partner_says_so():
    found = pairing(report(row("mok", 4.0), row("dist_moe", 2.0, precision="mxfp8"), row("torch", 1.0)))
    assert [entry.reason for entry in found.unpaired] == [
        "no dist_moe case of this workload was accepted",
        "no mok case of this workload was accepted",
    ]


def test_distance_to_torch_is_torch_time_over_the_backends_time():
    made = report(
        row("torch", 6.0), row("mok", 4.0, implementation="library"), row("mine", 12.0), row("mok", 1.0, ep=4)
    )
    ratios = torch_ratios(made)
    assert list(ratios.values()) == [1.5, 0.5]


def test_geometric_means_are_by_mode_and_precision():
    made = report(
        row("mok", 4.0), row("dist_moe", 1.0),
        row("mok", 1.0, F=32), row("dist_moe", 1.0, F=32),
        row("mok", 3.0, precision="mxfp8"), row("dist_moe", 1.0, precision="mxfp8"),
    )  # fmt: skip
    means = {(mean.precision, mean.comparison): (mean.workloads, mean.ratio) for mean in geometric_means(made)}
    assert means == {("bf16", FASTER_BY): (2, pytest.approx(2.0)), ("mxfp8", FASTER_BY): (1, pytest.approx(3.0))}


def test_published_geometric_means():
    means = {(mean.mode, mean.precision): mean.ratio for mean in geometric_means(load_report(PATH))}
    assert means == {
        ("inference", "bf16"): pytest.approx(1.1025437449848947),
        ("inference", "mxfp8"): pytest.approx(1.2632452242603216),
        ("training", "bf16"): pytest.approx(1.147542978088682),
        ("training", "mxfp8"): pytest.approx(1.2195263253851003),
    }


def test_torch_means_count_only_the_fastest_pipeline_of_a_workload():
    made = report(row("torch", 6.0), row("dist_moe", 3.0, "mega"), row("dist_moe", 2.0, "staged"))
    assert [(mean.comparison, mean.workloads, mean.ratio) for mean in geometric_means(made)] == [
        ("dist_moe vs torch", 1, pytest.approx(3.0))
    ]


def test_pairs_of_the_file_that_differ_are_told_and_absent_ones_are_not():
    raw = published()
    raw["pairs"][2]["dist"] = raw["pairs"][3]["dist"]
    raw["allPipelinePairs"].pop()
    first, second = differing_pairs(Report.model_validate(raw))
    assert "`pairs` (22)" in first
    assert "pairs[2]" in first
    assert "`allPipelinePairs` (32) differ from those recomputed from its cases (33)" in second
    del raw["pairs"], raw["allPipelinePairs"]
    assert differing_pairs(Report.model_validate(raw)) == []
