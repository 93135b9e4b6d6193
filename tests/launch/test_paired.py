"""A paired sweep from the command line to its report, with a rank that dies in the middle of a group."""

import pytest
from tests.e2e.sweeping import journal, moebench, report

pytestmark = pytest.mark.e2e

SELECT = ("--ep", "2", "-k", "*-inference-ep2-bf16-*-single_layer-i2-*")
DIST, MOK, TORCH = (
    f"{name}-single_layer-i2-F128"
    for name in (
        "dist_moe-inference-ep2-bf16-standard",
        "mok-inference-ep2-bf16-native",
        "torch-inference-ep2-bf16-eager",
    )
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paired")
    inject = ("--inject", f"kill:case={MOK},attempt=1")
    ended = moebench("sweep", "--paired", "--blocks", 6, *SELECT, *inject, "--out", "run", folder=folder)
    return folder, ended, report(folder / "run")


def test_the_case_in_turn_is_charged_and_then_the_whole_group_runs_again(swept):
    folder, ended, found = swept
    assert (ended.code, ended.stderr) == (0, "")
    assert "rank 1 was killed by SIGKILL" in ended.stdout
    endings = [(line["case"], line["attempt"], line["status"]) for line in journal(folder / "run") if "status" in line]
    assert [ending for ending in endings if ending[2] == "failed"] == [(MOK, 1, "failed")]
    assert len(endings) == 4
    assert len(list((folder / "run" / "logs").iterdir())) == 2
    assert [row["id"] for row in found["cases"]] == [TORCH, MOK, DIST]
    groups = {row["paired"]["group"] for row in found["cases"]}
    assert len(groups) == 1
    assert {(row["paired"]["blocks"], row["paired"]["alternated"], len(row["windowMS"])) for row in found["cases"]} == {
        (6, "windows", 12)
    }


def test_the_report_compares_all_of_the_group_and_has_its_a_a_pair(swept):
    found = swept[2]
    pairs = {(one["case"], one["baseline"]) for one in found["comparisons"]}
    assert pairs == {(DIST, MOK), (DIST, TORCH), (MOK, TORCH)}
    (floor,) = found["floors"]
    assert (floor["blocks"], floor["effect"] > 0) == (6, True)
    for one in found["comparisons"]:
        assert one["low"] <= one["fasterBy"] <= one["high"]
        assert one["level"] == pytest.approx(0.96875)


def test_the_sweep_and_show_end_with_the_comparisons(swept):
    folder, ended, _ = swept
    for text in (ended.stdout, moebench("show", "run/report.json", folder=folder).stdout):
        assert "3 paired comparisons" in text
        assert "dist_moe standard  mok native" in text
        assert "A/A, a case against itself in each of 1 job" in text
    assert "windows alternating" in folder.joinpath("run", "report.json").read_text()


def test_a_resumed_paired_run_keeps_its_group(swept):
    folder = swept[0]
    ended = moebench("sweep", "--resume", "run", folder=folder)
    assert ended.lines[0].startswith("0 cases in 0 launches (3 kept)")
