import json

import pytest
from tests.cli.selection_app import fails, run
from tests.reference import published

FIELDS = [
    "id",
    "backend",
    "mode",
    "ep",
    "precision",
    "pipeline",
    "category",
    "F",
    "imbalance",
    "profile",
    "layers",
    "T",
    "D",
    "E",
    "K",
    "S",
    "unsupported",
]


def test_ids_one_a_line_in_report_order():
    lines = run("cases --matrix gb300").stdout.splitlines()
    assert len(lines) == 110
    assert [id for id in lines if "-ep16-" in id or "-ep32-" in id] == list(published())


def test_json_has_every_axis_of_every_case():
    rows = json.loads(run("cases -m gb300 --json").stdout)
    assert len(rows) == 110
    assert all(list(row) == FIELDS for row in rows)
    packing = next(row for row in rows if row["id"] == "dist_moe-training-ep32-mxfp8-mega-packing-B-F3072")
    assert packing == {
        "id": "dist_moe-training-ep32-mxfp8-mega-packing-B-F3072",
        "backend": "dist_moe",
        "mode": "training",
        "ep": 32,
        "precision": "mxfp8",
        "pipeline": "mega",
        "category": "packing",
        "F": 3072,
        "imbalance": 1.0,
        "profile": "B",
        "layers": 10,
        "T": 2048,
        "D": 7168,
        "E": 384,
        "K": 6,
        "S": 1,
        "unsupported": None,
    }


def test_the_default_matrix_is_quick():
    assert run("cases").stdout == run("cases --matrix quick").stdout


def test_notes_go_to_standard_error():
    result = run("cases --ep 16 --precision mxfp8")
    assert result.stderr == "note: ep replaced by 16 in every block: quick has no such case\n"
    assert all("-ep16-mxfp8-" in line for line in result.stdout.splitlines())


def test_flags_repeat_and_take_lists():
    listed = run("cases --ep 2,4 --imbalance 1,2 --backend mok, --backend torch".replace("mok,", "mok")).stdout
    assert listed == run("cases --ep 2 --ep 4 --imbalance 2 --imbalance 1.0 --backend torch,mok").stdout
    assert listed


def test_patterns_are_not_split_and_nothing_in_them_is_evaluated():
    assert run("cases -k *-ep2-*-A-F128 -k *-ep4-*-A-F128").stdout.count("\n") == 14
    assert "-k __import__('os')" in fails("cases -k __import__('os')")


def test_a_model_sets_the_shape_and_explicit_flags_win():
    rows = json.loads(run("cases --model kimi-k2.7 --tokens 32 --ffn 64,96 --ep 8 --json").stdout)
    assert {(r["T"], r["D"], r["E"], r["K"]) for r in rows} == {(32, 7168, 384, 8)}
    assert {r["F"] for r in rows} == {64, 96}
    assert rows[0]["id"].endswith("-F64-T32-D7168-E384-K8")


def test_a_model_alone_replaces_F_in_every_block():
    rows = json.loads(run("cases --model GLM-5.2 --ep 8 --json").stdout)
    assert {(r["T"], r["F"]) for r in rows} == {(7168, 2048)}


def test_impossible_cases_say_why_in_json_and_on_standard_error():
    result = run("cases --ep 3 --backend torch --category single_layer --json")
    reason = "E=16 experts do not divide over ep=3 ranks"
    assert {row["unsupported"] for row in json.loads(result.stdout)} == {reason}
    assert f"note: 12 of 12 impossible: {reason}" in result.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--mode train", ["--mode train", "inference, training"]),
        ("--pipeline fast", ["--pipeline fast", "eager, native, standard, staged, mega"]),
        ("--category pack", ["--category pack", "single_layer, width, packing"]),
        ("--precision bf16,fp8", ["--precision fp8", "bf16, mxfp8"]),
        ("--backend deepep", ["--backend deepep", "dist_moe, mok, torch"]),
        ("--model gpt", ["--model gpt", "kimi-k2.7, glm-5.2, qwen3.5, deepseek-v4-pro"]),
        ("--ep eight", ["--ep eight", "whole number"]),
        ("--ep 8,", ["--ep :", "whole number"]),
        ("--ep 2.0", ["--ep 2.0", "whole number"]),
        ("--ep 0", ["--ep 0", "1 or more"]),
        ("--imbalance x", ["--imbalance x", "number"]),
        ("--imbalance nan", ["--imbalance nan", "out of range"]),
        ("--imbalance inf", ["--imbalance inf", "out of range"]),
        ("--imbalance -1", ["--imbalance -1", "0 or more"]),
        ("--tokens many", ["--tokens many", "whole number"]),
        ("--tokens 0", ["--tokens 0", "1 or more"]),
        ("--hidden 4", ["--hidden 4", "greater than or equal to 8"]),
        ("--experts 99999999999999999999", ["--experts", "less than or equal to 32768"]),
        ("--ffn 64,2", ["--ffn 2", "greater than or equal to 8"]),
        ("--matrix nope", ["nope", "gb300, h200, nvlink, quick"]),
        ("--pipeline mega --precision bf16", ["quick.toml", "--precision bf16", "--pipeline mega"]),
        ("-k nothing", ["quick.toml", "-k nothing"]),
    ],
)
def test_a_bad_flag_is_named_with_its_value_and_the_known_ones(flags, said):
    message = fails(f"cases {flags}")
    assert [part for part in said if part not in message] == [], message


def test_help_names_every_option_and_gives_examples():
    text = run("cases --help", columns=120).stdout
    assert "moebench cases --ep 16 --precision mxfp8" in text
    for option in [
        "--matrix",
        "--backend",
        "--mode",
        "--ep",
        "--precision",
        "--pipeline",
        "--category",
        "--imbalance",
        "-k",
    ]:
        assert option in text
    for option in ["--model", "--tokens", "--hidden", "--experts", "--topk", "--ffn", "--json"]:
        assert option in text
