"""`show --explain`: a figure's formula, its inputs, the same figure made again, and what it does not show."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.reduce.build import RunFolder, make_case, make_packing, make_traces
from tests.reference import PATH
from tests.show.build import report, row
from typer.testing import CliRunner

from moebench.cli.app import app
from moebench.errors import UsageError
from moebench.reduce.comparisons import compare_groups
from moebench.reduce.estimators import ESTIMATORS
from moebench.reduce.report import reduce_runs
from moebench.reduce.write import write_report
from moebench.show.console import make_console
from moebench.show.explain import explain
from moebench.show.reservations import reservations
from moebench.status import Reason, Status

H200X2 = Path(__file__).parents[2] / "examples" / "nvlink-ep2.json"
MOK = "mok-training-ep2-bf16-native-single_layer-i2-F3072"


def lines_of(what: str, given: Path | None, width: int = 80, encoding: str = "utf-8") -> list[str]:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding, newline="")
    explain(what, given, make_console(file=stream, width=width))
    stream.flush()
    return buffer.getvalue().decode(encoding).splitlines()


def explained(what: str, given: Path | None, width: int = 80) -> str:
    """All of it in one line."""
    return " ".join(" ".join(lines_of(what, given, width)).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder with two accepted cases, one accepted at its second attempt, and one that crashed."""
    packing, crashed = make_packing(), make_case("torch")
    folder = RunFolder(tmp_path_factory.mktemp("run") / "monday", [make_case("dist_moe"), packing, crashed])
    folder.run(make_case("dist_moe"), [[2.0, 2.0], [4.0, 4.0]])
    folder.note(packing, attempt=1)
    folder.note(packing, Status.FAILED, attempt=1, reason=Reason.CRASHED, message="rank 0 exited with code 1")
    folder.note(packing, attempt=2)
    folder.deliver([trace.model_copy(update={"attempt": 2}) for trace in make_traces(packing)])
    folder.note(packing, Status.ACCEPTED, attempt=2)
    folder.note(crashed)
    folder.note(crashed, Status.FAILED, reason=Reason.CRASHED, message="rank 1 exited with code -9", log="Killed\nbye")
    write_report(reduce_runs([folder.path]), folder.path / "report.json")
    return folder.path


@pytest.mark.parametrize("key", ESTIMATORS)
def test_a_metric_is_told_with_formula_estimator_and_what_it_does_not_show(key: str):
    text, metric = explained(key, H200X2), ESTIMATORS[key]
    for part in (key, metric.title, metric.formula, metric.estimator, metric.not_for, "In /"):
        assert part in text


def test_a_metric_is_made_again_for_every_case_of_the_report():
    text = explained("usefulTFPerGPU", H200X2, width=200)
    assert "35 of 35 have it" in text
    assert "least 36.555" in text
    assert "most 518.269 dist_moe-training-ep2-bf16-standard-single_layer-i1-F3072-T32768-E96" in text
    assert "made again from the inputs in the report: equal in 35 of 35 cases" in text
    assert "not from the report alone" in explained("forwardMS", H200X2)
    assert explained("vsTorch", H200X2).endswith(
        "cases it takes more than one row, or their shape: --explain CASE shows it"
    )


def test_a_metric_needs_no_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert explained("spread", None).endswith(ESTIMATORS["spread"].not_for)
    with pytest.raises(UsageError, match="there is no report"):
        explained(MOK, None)


def test_a_case_outside_of_its_run_folder_says_so_and_is_made_again_as_far_as_the_report_goes():
    text = explained(MOK, H200X2)
    for part in [
        f"{MOK} status accepted, attempt 1 of 1 counts",
        "measured 5 windows of 20 iterations after 5 warm-ups, on 2 ranks",
        "estimator slowest-rank-window-mean",
        "samples windowMS 86.8672, 87.1086, 86.7031, 86.7069, 86.7101",
        "spread 0.47% of the median",
        "steady no drift, groups or outliers found",
        "none to look at: only the report is here",
        "iterationMS 86.8192 ms: time of an iteration",
        "from windowMS 86.8672, 87.1086, 86.7031, 86.7069, 86.7101: equal",
        "from K=6 S=1 T=2048 D=7168 F=3072 L=1 passes=3: 5682241732608 FLOPs; iterationMS 86.8192: equal",
        "A=96 w=2: 39768440832 bytes; iterationMS 86.8192: equal",
        "not made again: its inputs are not here",
        "vsTorch 0.396045 factor",
        "distFasterBy 2.59328 factor",
        "- How fast the library mok is, or which library is faster",
    ]:
        assert part in text, part
    assert "DIFFERS" not in text


def test_a_case_in_its_run_folder_is_made_again_from_its_rank_traces(run: Path):
    text = explained("mok-*", run)
    for part in [
        "status accepted, attempt 2 of 2 counts",
        "2 read, 2 files in",
        "backwardMS 1 ms: time of backward, in training",
        "from slowest rank of each window: 1, 1; its mean: 1, 1: equal",
        "from rank 0: 32000 bytes in 0.008 s, rank 1: 32000 bytes in 0.008 s: equal",
    ]:
        assert part in text, part
    assert "".join(text.split()).count(f"{run}/traces/{make_packing().id}/2".replace(" ", "")) == 1
    assert "DIFFERS" not in text
    assert "not made again" not in text


def test_a_figure_that_does_not_follow_from_its_inputs_is_said_to_differ(run: Path, tmp_path: Path):
    raw = json.loads((run / "report.json").read_text())
    raw["cases"][0] |= {"iterationMS": 3.5, "floorMS": [1.0, 1.0]}
    (tmp_path / "plan.json").write_bytes((run / "plan.json").read_bytes())
    (tmp_path / "traces").symlink_to(run / "traces")
    (tmp_path / "report.json").write_text(json.dumps(raw))
    text = explained(raw["cases"][0]["id"], tmp_path)
    assert "DIFFERS from windowMS 2, 4: 3 " in text
    assert "DIFFERS from fastest rank of each window: 0, 0; its mean: 2, 4: 2, 4" in text
    assert "equal in 1 of 2 cases DIFFERS dist_moe-" in explained("iterationMS", tmp_path)


def test_a_rejected_case_tells_why_it_has_no_figures(run: Path):
    text = explained("torch-*", run)
    assert "status failed, crashed why rank 1 exited with code -9 attempts 1 log Killed log bye" in text
    assert text.endswith("figures none: what was not accepted has none in a report")


@pytest.mark.parametrize(
    ("remove", "problem"),
    [
        ("plan.json", "only the report is here"),
        ("traces/{id}/1/rank-1.json", "its traces do not count: 1 of 2 ranks delivered a trace; missing: rank 1"),
        ("traces/{id}/1", "the run folder has no traces of attempt 1"),
    ],
)
def test_traces_that_are_gone_are_missed_by_name(run: Path, tmp_path: Path, remove: str, problem: str):
    folder = shutil.copytree(run, tmp_path / "run")
    case_id = make_case("dist_moe").id
    gone = folder / remove.format(id=case_id)
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert problem in explained(case_id, folder)


def test_cases_of_another_run_folder_are_not_looked_for(run: Path, tmp_path: Path):
    (tmp_path / "plan.json").write_bytes((run / "plan.json").read_bytes())
    (tmp_path / "report.json").write_bytes(H200X2.read_bytes())
    assert "the run folder that the report lies in has no such case" in explained(MOK, tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    assert "rank traces none to look at: " in explained(MOK, tmp_path)


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        ("mok-*", r"12 cases match: mok-.* and 9 more\. Name one"),
        ("iterationms", r"neither a metric nor a case of this report\. Near it: iterationMS"),
        ("nothing", r"neither .* Metrics are iterationMS, forwardMS"),
    ],
)
def test_what_is_neither_a_metric_nor_one_case_is_refused(what: str, hint: str):
    with pytest.raises(UsageError, match=hint):
        explained(what, H200X2)


PAIRED = {"group": "g", "blocks": 6, "alternated": "windows"}
LONE = "timed one after the other"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"injected": ["sleep:rank=1"]}, "faults were injected on purpose (sleep:rank=1)"),
        ({"stale": "windows was 3, is 5"}, "measured before a change (windows was 3, is 5)"),
        ({"environment": {"gpu_shared_by": 2}}, "several ranks shared one GPU"),
        ({"implementation": "portable"}, "How fast the library mok is"),
        ({"implementation": None}, "the report does not say"),
        ({"environment": {"device": "cpu"}}, "What is faster on a GPU"),
        ({"emulated": True}, "dequantised operands"),
        ({"hostKnownSplits": True}, "exchanging split sizes"),
        ({"cudaGraph": True}, "a CUDA graph"),
        ({"l2Flush": True}, "a warm L2 cache"),
        ({"trafficSource": "transport"}, "handed to the collectives"),
        ({"trafficSource": "logical"}, "by formula (logical)"),
        ({"memorySource": "rss"}, "resident memory"),
        ({"windowMS": None}, "no windows (windowMS)"),
        ({"windowMS": [2.0]}, "one window says nothing of its noise"),
        ({"windowMS": [2.0, 2.0, 2.0]}, "3 windows are too few for an interval, 4 are needed"),
        ({"unstable": ["drifting: +9%"]}, "unstable (drifting: +9%)"),
        ({"paired": None}, LONE),
        ({"paired": PAIRED | {"alternated": "executions"}}, "set up anew for each window"),
    ],
)
def test_what_a_case_does_not_show_follows_from_what_it_is(keys: dict[str, Any], told: str):
    sound = {
        "implementation": "library", "emulated": False, "trafficSource": "nvlink", "environment": {"device": "cuda"},
        "windowMS": [2.0] * 12, "paired": PAIRED,
    }  # fmt: skip
    dist = row("dist_moe", 3.0, **sound)
    made = report(row("mok", 2.0, **sound), dist)
    assert reservations(made, made.cases[0]) == []
    changed = report(row("mok", 2.0, **sound | keys), dist)
    (line,) = [line for line in reservations(changed, changed.cases[0]) if "no pair" not in line]
    assert told in line


def test_a_case_without_a_pair_and_one_of_several_pipelines_say_so():
    made = report(row("mok", 2.0), row("dist_moe", 3.0, "mega"), row("dist_moe", 2.5, "staged"), row("mok", 9.0, F=64))
    for i in range(3):
        assert any("best of 2 dist_moe pipelines" in line for line in reservations(made, made.cases[i]))
    told = reservations(made, made.cases[3])
    assert "Who is faster: it has no pair, since no dist_moe case of this workload was accepted." in told


def test_a_paired_case_tells_its_comparisons_and_the_floor_of_its_group(tmp_path: Path):
    windows = [2.0, 2.1, 2.2, 2.1, 2.0, 2.05, 2.1, 2.15, 2.0, 2.1, 2.2, 2.12]
    rows = [
        row("mok", sum(windows) / 12, windowMS=windows, paired=PAIRED | {"aaMS": windows[::-1]}),
        row("dist_moe", sum(windows) / 24, windowMS=[ms / 2 for ms in windows], paired=PAIRED),
    ]
    found = compare_groups(report(*rows).cases)
    dumped = [[one.model_dump() for one in ones] for ones in (found.comparisons, found.floors)]
    write_report(report(*rows, comparisons=dumped[0], floors=dumped[1]), tmp_path / "paired.json")
    text = explained("dist_moe-*", tmp_path / "paired.json")
    assert "fasterBy 2 factor: how many times faster" in text
    assert f"from 6 blocks of windows against {rows[0]['id']}, interval 2 to 2 of level 96.9%, faster: equal" in text
    assert f"from 6 blocks of windowMS and paired.aaMS of {rows[0]['id']}: equal" in text
    assert LONE not in text


@pytest.mark.parametrize("width", [20, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("what", ["modeledHBMGBps", MOK])
def test_explanations_keep_to_the_width_and_are_plain_text(what: str, width: int, encoding: str):
    lines = lines_of(what, H200X2, width, encoding)
    assert max(map(len, lines)) <= width
    told = "".join("".join(lines).split())
    for key in ESTIMATORS if what == MOK else (what,):
        assert key not in told or "".join(ESTIMATORS[key].formula.split()) in told


def test_hostile_texts_of_a_report_are_told_inert(tmp_path: Path):
    attack = "\x1b[2J\x07\u202e[red]x"
    made = report(row("mok", 2.0, estimator=attack) | {"id": attack})
    write_report(made, tmp_path / "report.json")
    text = "\n".join(lines_of(attack, tmp_path / "report.json"))
    assert not set(text) & set("\x1b\x07\u202e")
    assert text.count("\\x1b[2J\\x07\\u202e[red]x") == 2


def test_show_explains_and_refuses_json_beside_it():
    shown = CliRunner().invoke(app, ["show", str(PATH), "--explain", "mok-*-ep16-bf16-*-i4-*"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert shown.stdout.startswith("mok-inference-ep16-bf16-native-single_layer-i4-F3072")
    refused = CliRunner().invoke(app, ["show", str(PATH), "--explain", "spread", "--json"])
    assert isinstance(refused.exception, UsageError)
    assert "--explain and --json" in str(refused.exception)
