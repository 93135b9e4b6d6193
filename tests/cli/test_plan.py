import json
import time

import pytest
from tests.cli.selection_app import fails, run
from tests.reference import published

from moebench.cases.machine import Machine
from moebench.cases.matrix import find_matrix

FIELDS = [
    "id",
    "ranks",
    "memoryBytesPerRank",
    "usefulFLOPs",
    "modeledHBMBytes",
    "logicalTXBytes",
    "capacity",
    "runnable",
    "reason",
]


@pytest.fixture
def laptop(monkeypatch):
    """A machine of known size, so that what can run does not depend on where the tests do."""
    machine = Machine(cores=4, available_bytes=6 * 2**30)
    monkeypatch.setattr("moebench.cases.machine.this_machine", lambda: machine)


def planned(line):
    result = run(f"plan {line} --json")
    assert result.exception is None, result.exception
    return {row["id"]: row for row in json.loads(result.stdout, parse_constant=pytest.fail)}


def test_json_gives_the_published_work_and_capacity(laptop):
    rows = planned("-m gb300")
    assert len(rows) == 110
    for id, row in published().items():
        assert list(rows[id]) == FIELDS
        assert rows[id]["ranks"] == row["ep"]
        assert rows[id]["capacity"] == row.get("capacity")
        rate = rows[id]["usefulFLOPs"] / row["iterationMS"] / 1e9
        assert rate == pytest.approx(row["usefulTFPerGPU"], rel=1e-12)


def test_what_does_not_fit_says_so_with_figures(laptop):
    row = planned("-m gb300")["mok-inference-ep16-bf16-native-single_layer-i1-F3072"]
    assert not row["runnable"]
    assert row["reason"] == "16 ranks of 5.5 GiB (modeled) need 88.1 GiB, this machine has 6.0 GiB available"
    assert row["memoryBytesPerRank"] > 5 * 2**30


def test_quick_runs_on_a_laptop_but_64_ranks_do_not(laptop):
    assert all(row["runnable"] for row in planned("").values())
    assert not any(row["runnable"] for row in planned("--ep 64 --experts 64").values())


def test_impossible_cases_are_rows_too(laptop):
    rows = planned("--ep 3 -k *packing*")
    assert {(row["runnable"], row["reason"]) for row in rows.values()} == {
        (False, "layer 0: E=16 experts do not divide over ep=3 ranks")
    }
    assert {(row["memoryBytesPerRank"], row["capacity"]) for row in rows.values()} == {(None, None)}


def test_rows_beyond_scratch_are_found_before_any_launch(laptop, tmp_path):
    text = find_matrix("quick").read_text()
    (tmp_path / "tight.toml").write_text(text.replace("scratch_factor = 4.0", "scratch_factor = 1.5"))
    rows = planned(f"-m {tmp_path}/tight.toml")
    row = rows["dist_moe-inference-ep4-bf16-standard-single_layer-i4-F128"]
    assert row["reason"] == (
        "dist_moe scratch holds 192 rows at scratch_factor 1.5, but rank 0 receives 512 in layer 0; "
        "raise scratch_factor"
    )
    assert rows["mok-inference-ep4-bf16-native-single_layer-i4-F128"]["runnable"]


def test_a_matrix_far_larger_than_this_machine_is_planned_in_seconds(laptop, tmp_path):
    profile = [1 + layer % 7 / 2 for layer in range(60)]
    (tmp_path / "far.toml").write_text(
        f"""
        [shape]
        T = 16384
        D = 16384
        E = 4096
        K = 16
        F = 8192
        [profiles]
        A = {profile}
        [[sweep]]
        category = "packing"
        backend = ["dist_moe", "mok", "torch"]
        mode = "training"
        ep = [128, 256, 512, 1024]
        precision = ["bf16", "mxfp8"]
        profile = "A"
        """
    )
    start = time.monotonic()
    rows = planned(f"-m {tmp_path}/far.toml")
    assert time.monotonic() - start < 8
    assert len(rows) == 28
    assert not any(row["runnable"] for row in rows.values())


@pytest.mark.parametrize("columns", [80, 200])
def test_the_table_fits_its_terminal_in_plain_ascii(laptop, columns):
    text = run("plan -m gb300", columns).stdout
    assert max(len(line) for line in text.splitlines()) <= columns
    assert text.isascii()
    for part in ("training ep32 mxfp8", "packing A F3072", "dist_moe mega", "81920 rows", "0 of 10 layers"):
        assert part in text
    assert "single_layer i4 F3072 " in text


def test_reasons_that_differ_only_in_figures_are_said_once(laptop):
    text = run("plan -m gb300", 200).stdout
    assert text.count("this machine has 6.0 GiB available") == 1
    assert "(a) 110 cases, the first mok-inference-ep16-bf16-native-single_layer-i1-F3072" in text


def test_notes_come_first_and_totals_last(laptop):
    lines = run("plan --ep 16 --precision mxfp8", 100).stdout.splitlines()
    assert lines[0] == "note: ep replaced by 16 in every block: quick has no such case"
    assert lines[-1] == "56 cases in 1 launch (ep 16); 0 can run here."
    assert run("plan", 100).stdout.splitlines()[-1] == "133 cases in 2 launches (ep 2, 4); 133 can run here."


def test_a_usage_error_leaves_nothing_on_standard_output():
    assert "--mode train" in fails("plan --json --mode train")
