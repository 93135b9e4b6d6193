import re

import pytest
from rich.cells import cell_len
from tests.show.build import published, report, row, shown, sweep

from moebench.reduce.schema import Report

REPORTS = {"published": published, "sweep": sweep}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [20, 50, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_longer_than_the_console(name: str, width: int, encoding: str):
    lines = shown(REPORTS[name](), width, encoding=encoding).splitlines()
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_every_case_and_its_figures_are_visible(width: int):
    text = shown(published(), width)
    for group in ("inference-ep16-bf16", "inference-ep16-mxfp8", "training-ep32-bf16", "training-ep32-mxfp8"):
        assert text.count(group) == 2
    assert len(re.findall(r"^  (?:mok|dist_moe) \w+ ", text, re.MULTILINE)) == 55
    for title in ("ms", "TFLOP/s", "tokens", "TX", "RX", "GiB"):
        assert title in text
    assert re.search(r"mok native +1\.672 .* 1133 +1\.23M +194\.5 +194\.9 .*13\.06", text)


def test_wide_console_adds_columns_that_a_narrow_one_drops():
    assert "replays 81920 rows" in shown(published(), 200)
    assert "recomputes 0 of 320 rank-layers" in shown(published(), 200)
    assert "replays" not in shown(published(), 80)


@pytest.mark.parametrize("width", [80, 200])
def test_pairs_tell_times_speed_up_and_number_of_pipelines(width: int):
    text = shown(published(), width, only_pairs=True)
    assert "22 pairs (33 pipeline pairs)" in text
    assert "faster by" in text
    assert re.search(r"width-i1-F1536 +staged +best of 2 pipelines +0\.7512 +1\.005 +1\.34x", text)
    assert len(re.findall(r"^(?:single_layer|width|packing)-.*\d\.\d\dx", text, re.MULTILINE)) == 22
    assert text.count("best of 2 pipelines") == 11


def test_geometric_means_stand_by_mode_and_precision():
    text = shown(published(), 80)
    assert re.search(r"inference-mxfp8 +1\.26x \(6\)", text)
    assert re.search(r"training-bf16 +1\.15x \(5\)", text)


@pytest.mark.parametrize("width", [80, 200])
def test_distance_to_torch_stands_beside_pairs_and_in_means(width: int):
    text = shown(sweep(), width, only_pairs=True)
    assert re.search(r"single_layer-i2-F128 +staged .*2\.000 +2\.500 +1\.25x +2\.00x +1\.60x", text)
    assert re.search(r"inference-mxfp8 +1\.25x \(2\) +2\.00x \(2\) +1\.60x \(2\)", text)


def test_hundred_unsupported_cases_are_one_entry_and_every_reason_is_told():
    lines = shown(sweep(), 120).splitlines()
    assert "9 of 112 planned cases accepted: 1 rejected, 1 failed, 1 not-run, 100 unsupported" in lines
    assert "rejected, spread, 1 case: spread is 0.5, limit 0.1" in lines
    assert "failed, crashed, 1 case: rank 1 exited with code -9" in lines
    assert "not-run, 1 case: the time budget of 60 s was spent" in lines
    assert "unsupported, 100 cases; figures of the first: 3 ranks, 2 GPUs here" in lines
    assert sum("mok-inference-ep" in line for line in lines) == 1
    assert any(line.endswith("and 97 more") for line in lines)


def test_group_of_one_accepted_one_unsupported_and_one_crashed_case_is_shown():
    rejected = [
        {"id": "mok-x", "status": "unsupported", "message": "no"},
        {"id": "torch-x", "status": "failed", "reason": "crashed"},
    ]
    text = shown(report(row("dist_moe", 2.0), rejected=rejected), 80)
    assert "1 of 3 planned cases accepted: 1 failed, 1 unsupported" in text
    assert "failed, crashed, 1 case: no reason was recorded" in text
    assert "unpaired, 1 case: no mok case of this workload was accepted" in text


def test_report_in_which_nothing_was_accepted_is_shown():
    text = shown(report(rejected=[{"id": "a", "status": "failed", "reason": "timeout", "message": "60 s"}]), 80)
    assert "0 of 1 planned case accepted: 1 failed" in text
    assert "failed, timeout, 1 case: 60 s" in text
    assert "0 pairs" in text


def test_marks_have_a_legend_and_portable_on_cpu_is_said_plainly_once():
    text = " ".join(shown(sweep(), 80).split())
    assert "P portable: the backend's execution strategy re-created in PyTorch, not its library" in text
    assert "E emulated: MXFP8" in text
    assert "M modeled" not in text
    assert text.count("These times compare execution strategies in PyTorch run on CPU over gloo.") == 1
    assert re.search(r"mok native [\d. kx]*PE", text)


def test_traffic_by_formula_is_marked_as_modeled():
    text = shown(report(row("mok", 2.0, trafficSource="logical")), 80)
    assert re.search(r"mok native .*PEM", text)
    assert "M modeled: from a formula, not measured" in text


def test_library_on_gpu_needs_no_reservation():
    keys = {"implementation": "library", "emulated": False, "environment": {"device": "cuda"}}
    text = shown(report(row("mok", 2.0, **keys)), 80)
    assert "These times" not in text
    assert "portable" not in text


def test_ascii_console_gets_ascii_and_utf8_gets_lines():
    made = report(row("mok", 2.0), meta={"hardware": "Grün 🚀"}, rejected=[{"id": "ü", "status": "failed"}])
    text = shown(made, 80, encoding="ascii")
    assert "Gr\\xfcn" in text
    assert "-----" in text
    assert "─────" in shown(made, 80)
    assert "Grün" in shown(made, 80)


def test_dumb_terminal_gets_ascii(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert shown(sweep(), 80).isascii()


def hostile() -> Report:
    attack = "\x1b[2J\x1b]8;;http://x\x07[red]bold[/red]\x9b31m\u202e\r\n:boom:"
    return report(
        row("mok", 2.0, attack, category=attack),
        row("dist_moe", 2.0, category=attack),
        row("torch", 1.0, category=attack),
        meta={"hardware": attack, "reportDate": attack},
        rejected=[{"id": attack, "status": "failed", "reason": "crashed", "message": attack + "\ud800"}],
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_nothing_in_a_report_reaches_the_terminal_as_a_control_sequence(encoding: str):
    text = shown(hostile(), 200, encoding=encoding)
    assert not set(text) & set("\x1b\x07\x9b\u202e\r\ud800")
    assert "\\x1b[2J" in text
    assert "[red]bold[/red]" in text
    assert ":boom:" in text
