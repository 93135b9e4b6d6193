from collections import Counter

import pytest
from tests.reference import gb300, published

from moebench.cases.work import logical_tx_bytes, modeled_hbm_bytes, useful_flops


def test_gb300_has_the_110_published_cases():
    assert Counter(case.ep for case in gb300().values()) == {8: 15, 16: 30, 32: 25, 64: 40}


def test_ids_are_those_of_the_published_report_in_its_order():
    assert [id for id, case in gb300().items() if case.ep in (16, 32)] == list(published())


def test_ep16_comes_before_ep8_because_ids_sort_as_text():
    ids = list(gb300())
    assert ids[0] == "mok-inference-ep16-bf16-native-single_layer-i1-F3072"
    assert ids[-1] == "dist_moe-training-ep64-mxfp8-staged-width-i1-F6144"
    assert [int(id.split("-ep")[1].split("-")[0]) for id in ids] == [16] * 30 + [8] * 15 + [32] * 25 + [64] * 40


@pytest.mark.parametrize("id", published())
def test_published_axes_are_reproduced(id):
    case, row = gb300()[id], published()[id]
    own = (case.backend, case.mode, case.ep, case.precision, case.pipeline, case.category, case.shape.F)
    assert own == tuple(row[k] for k in ("backend", "mode", "ep", "precision", "pipeline", "category", "F"))
    assert (case.imbalance, case.profile, case.layers) == (row["imbalance"], row["profile"], row["layers"])


@pytest.mark.parametrize("id", published())
def test_published_rates_follow_from_the_formulas(id):
    case, row = gb300()[id], published()[id]
    teraflops = useful_flops(case) / row["iterationMS"] / 1e9
    gigabytes = modeled_hbm_bytes(case) / row["iterationMS"] / 1e6
    assert teraflops == pytest.approx(row["usefulTFPerGPU"], rel=1e-12, abs=0)
    assert gigabytes == pytest.approx(row["modeledHBMGBps"], rel=1e-12, abs=0)


@pytest.mark.parametrize("id", published())
def test_published_traffic_is_within_4_percent_of_logical_bytes(id):
    row = published()[id]
    measured = row["meanTXGBps"] * row["iterationMS"] * 1e6
    assert 0.96 < measured / logical_tx_bytes(gb300()[id]) < 1.04


@pytest.mark.parametrize(
    ("id", "tx_bytes"),
    [
        ("mok-inference-ep16-bf16-native-single_layer-i1-F3072", 330_301_440),
        ("mok-inference-ep16-mxfp8-native-single_layer-i8-F3072", 330_301_440),
        ("dist_moe-inference-ep16-bf16-standard-single_layer-i1-F3072", 330_301_440),
        ("dist_moe-inference-ep16-mxfp8-mega-single_layer-i1-F3072", 250_306_560),
        ("dist_moe-inference-ep8-mxfp8-staged-single_layer-i1-F3072", 233_619_456),
        ("dist_moe-training-ep32-mxfp8-mega-single_layer-i1-F3072", 682_622_976),
        ("mok-training-ep32-bf16-native-single_layer-i1-F3072", 682_718_208),
        ("mok-training-ep32-bf16-native-packing-A-F3072", 6_827_182_080),
    ],
)
def test_logical_bytes_sent_by_a_rank(id, tx_bytes):
    assert logical_tx_bytes(gb300()[id]) == tx_bytes


def test_useful_flops_count_the_shared_expert_and_three_passes_of_training():
    assert useful_flops(gb300()["mok-inference-ep8-bf16-native-single_layer-i1-F3072"]) == 1_894_080_577_536
    assert useful_flops(gb300()["mok-training-ep64-bf16-native-packing-B-F3072"]) == 56_822_417_326_080


def test_at_ep8_and_imbalance_8_only_rank_0_reads_weights():
    even = modeled_hbm_bytes(gb300()["mok-inference-ep8-bf16-native-single_layer-i1-F3072"])
    hot = modeled_hbm_bytes(gb300()["mok-inference-ep8-bf16-native-single_layer-i8-F3072"])
    assert even - hot == (48 - 6) * 3 * 7168 * 3072 * 2
