"""`moebench compare` as a gate: its exit status, and what each form of its output says."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.reduce.build import RunFolder, make_case
from tests.reduce.test_compare import OLD, SLOW, case
from tests.reference import PATH
from tests.show.build import report
from typer.testing import CliRunner, Result

from moebench.cli.app import app
from moebench.cli.compare import parse_percent
from moebench.errors import UsageError
from moebench.reduce.report import reduce_runs
from moebench.reduce.write import write_report

NOISY = [90.0, 95.0, 100.0, 110.0, 120.0]
FORMS = ["", "--markdown", "--json"]


def compare(*arguments: object, columns: int = 80) -> Result:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": str(columns)})
    if isinstance(result.exception, UsageError):
        raise result.exception
    return result


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes the rows of A and B, and returns both names."""
    monkeypatch.chdir(tmp_path)

    def write(old: list[dict[str, Any]], new: list[dict[str, Any]], **keys: Any) -> tuple[str, str]:
        write_report(report(*old), Path("a.json"))
        write_report(report(*new, **keys), Path("b.json"))
        return "a.json", "b.json"

    return write


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("windows", "exit_status"), [(OLD, 0), (SLOW, 1), (NOISY, 3)])
def test_exit_status_is_the_same_in_every_form(files, windows, exit_status, form):
    result = compare(*files([case(OLD)], [case(windows)]), *form.split())
    assert result.exit_code == exit_status
    assert result.stderr == ""


def test_limit_is_that_of_the_flag(files):
    names = files([case(OLD)], [case(SLOW)])
    assert compare(*names, "--max-regression", "20%").exit_code == 0
    assert compare(*names, "--max-regression", "5").exit_code == 1


@pytest.mark.parametrize(
    ("text", "limit"), [("3%", 0.03), ("3", 0.03), ("2.5 %", 0.025), ("0.5%", 0.005), ("0", 0.0), ("250%", 2.5)]
)
def test_limit_is_a_percentage(text: str, limit: float):
    assert parse_percent(text) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0.03", r"0\.03% or 3%\? Write the sign"),
        ("three", "not a percentage. Write it like 3%"),
        ("-3%", "not a percentage"),
        ("nan", "not a percentage"),
        ("", "not a percentage"),
        ("1e5", "not a percentage"),
    ],
)
def test_limit_that_is_no_percentage_or_could_mean_two_is_refused(text: str, hint: str):
    with pytest.raises(UsageError, match=hint):
        parse_percent(text)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["a.json", "no.json"], r"no\.json: there is no such file"),
        (["a.json", "broken.json"], r"broken\.json: truncated JSON"),
        (["a.json", "b.json"], "A and B have no case in common"),
        (["a.json", "a.json", "--json", "--markdown"], "Give one of them"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_exit_status_2(files, arguments, hint):
    files([case(OLD)], [case(OLD, F=64)])
    Path("broken.json").write_text('{"meta": ')
    with pytest.raises(UsageError, match=hint) as raised:
        compare(*arguments)
    assert raised.value.exit_code == 2


def test_run_folders_are_compared_by_their_reports(tmp_path):
    for name, ms in (("one", 2.0), ("other", 3.0)):
        run = RunFolder(tmp_path / name, [make_case()])
        run.run(make_case(), [[ms, ms]] * 2)
        write_report(reduce_runs([run.path]), run.path / "report.json")
    result = compare(tmp_path / "one", tmp_path / "other", "--json")
    (found,) = json.loads(result.stdout)["cases"]
    assert (found["ratio"], found["why"]) == (1.5, "A has samples of 2 windows, and 4 are needed")


def test_published_report_has_no_samples_so_there_is_no_interval_and_it_says_so(tmp_path):
    result = compare(PATH, PATH)
    assert result.exit_code == 3
    text = " ".join(result.stdout.split())
    assert "undecided, 55 cases, A has no samples (windowMS):" in text
    assert "0 regressions beyond 3%, 55 undecided, 0 without regression" in text
    assert "[" not in text.partition("Differences")[0]


def test_published_report_decides_by_its_means_if_asked(tmp_path):
    assert compare(PATH, PATH, "--by-ratio").exit_code == 0
    raw = json.loads(PATH.read_text())
    raw["cases"][3]["iterationMS"] *= 1.05
    (tmp_path / "slower.json").write_text(json.dumps(raw))
    result = compare(PATH, tmp_path / "slower.json", "--by-ratio")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert (
        f"regression, 1.050 by the ratio of means alone, since A has no samples (windowMS): {raw['cases'][3]['id']}"
        in text
    )
    assert "No interval, 55 cases: without samples (windowMS) the ratio of the means decided alone" in text


def everything(files) -> tuple[str, str]:
    """A report pair with something of all that can be told."""
    gone = case(OLD, F=16)
    environment = {"hardware": "Test CPU", "device": "cpu"}
    return files(
        [
            case(OLD, environment=environment | {"torch": "2.11.0", "host": "monday"}, memorySource="allocator"),
            gone,
            case(OLD, F=32),
            case(OLD, F=64),
            case(OLD, F=256),
        ],
        [
            case(
                SLOW,
                environment=environment | {"torch": "2.13.0", "host": "friday"},
                memorySource="allocator",
                peakAllocatedGiB=0.75,
            ),
            case(NOISY, F=32),
            case(OLD, F=64, estimator="median", stale="windows was 3, is 5"),
            case(OLD, F=512),
        ],
        rejected=[{"id": gone["id"], "status": "failed", "reason": "crashed", "message": "rank 1: `a|b` @you <b>"}],
    )


TOLD = [
    "torch: 2.11.0 -> 2.13.0 (1 case)",
    "host: monday -> friday (1 case)",
    "peakAllocatedGiB, 1 case",
    "0.5000 -> 0.7500 (+50.0%)",
    "p: of 1 ratio above 1.03",
    "exact interval of level 96.8%",
    "Separate runs: what else changed between them",
    "stale in B: windows was 3, is 5",
    "the limit lies inside the interval",
    "1 regression beyond 3%, 1 lost, 2 undecided, 0 without regression",
]


@pytest.mark.parametrize("columns", [80, 200])
def test_everything_is_told_in_the_width_there_is_and_without_colour(files, columns):
    result = compare(*everything(files), columns=columns)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in result.stdout
    text = " ".join(result.stdout.split())
    for part in [
        *TOLD,
        "regression, 1.098 [1.068, 1.129]: torch-inference-4-mxfp8-eager-single_layer-1.0-128",
        "lost, 1 case, failed, crashed: rank 1: `a|b` @you <b>: torch-inference-4-mxfp8-eager-single_layer-1.0-16",
        "only in A, since B did not plan them, 1 case: torch-inference-4-mxfp8-eager-single_layer-1.0-256",
        "only in B, 1 case: torch-inference-4-mxfp8-eager-single_layer-1.0-512",
    ]:
        assert part in text
    assert text.endswith(TOLD[-1])


def test_markdown_shows_findings_and_folds_the_rest(files):
    text = compare(*everything(files), "--markdown").stdout
    sight, _, folded = text.partition("<details>")
    assert sight.startswith("### moebench: 1 regression beyond 3%, 1 lost")
    row = (
        "| `torch-inference-4-mxfp8-eager-single_layer-1.0-128` | 102.0 | 112.0 | 1.098 | [1.068, 1.129] | regression |"
    )
    assert sight.count(row) == folded.count(row) == 1
    assert "<details><summary>Environment: 1 difference that may move a time</summary>\n\n- `torch: 2.11.0" in text
    for part in TOLD:
        assert part in text
    assert text.count("<details>") == text.count("</details>") == 3


def test_markdown_keeps_texts_of_a_report_between_backquotes(files):
    text = compare(*everything(files), "--markdown").stdout
    (line,) = [line for line in text.splitlines() if "@you" in line]
    assert line.startswith("- `lost, 1 case, failed, crashed: rank 1: 'a/b' @you <b>: torch-")
    assert line.count("`") == 2


def test_markdown_of_a_thousand_cases_fits_a_comment(files):
    old = [case(OLD, F=8 * i) for i in range(1, 1001)]
    new = [case(SLOW, F=8 * i) for i in range(1, 801)]
    lost = [
        {"id": case(OLD, F=8 * i)["id"], "status": "failed", "reason": "crashed", "message": f"{i} {'x' * 400}"}
        for i in range(801, 1001)
    ]
    text = compare(*files(old, new, rejected=lost), "--markdown").stdout
    assert len(text) < 65_536
    assert "| and 775 more, which `moebench compare --json` has |" in text
    assert "| and 650 more, which" in text


def test_json_has_every_case_with_interval_finding_and_reason(files):
    found = json.loads(compare(*everything(files), "--json").stdout)
    assert found["cases"][0] == {
        "id": "torch-inference-4-mxfp8-eager-single_layer-1.0-128", "finding": "regression", "why": None,
        "oldMS": 102.0, "newMS": 112.0, "ratio": pytest.approx(112 / 102), "low": pytest.approx(110 / 103),
        "high": pytest.approx(114 / 101), "level": pytest.approx(244 / 252), "adjustedPValue": pytest.approx(2 / 252),
        "oldWindows": 5, "newWindows": 5, "unstable": [],
    }  # fmt: skip
    assert (found["maxRegression"], found["exitStatus"], found["claims"]) == (0.03, 1, 1)
    assert [(one["finding"], one["why"][:7]) for one in found["notCompared"]] == [
        ("lost", "failed,"),
        ("undecided", "stale i"),
    ]
    assert [(one["key"], one["matters"]) for one in found["environment"]] == [("torch", True), ("host", False)]
    assert [one["metric"] for one in found["changes"]] == ["peakAllocatedGiB"]
    assert [len(found[key]) for key in ("onlyOld", "onlyNew", "regained")] == [1, 1, 0]


def test_hostile_texts_reach_neither_a_terminal_nor_a_line_of_their_own(files):
    attack = "\x1b[2J\r\n# x\u202e"
    rows = [case(OLD, environment={"hardware": "x", "torch": torch}) | {"id": attack} for torch in ("1", attack)]
    names = files(rows[:1], rows[1:])
    for form in FORMS[:2]:
        text = compare(*names, *form.split()).stdout
        assert not set(text) & set("\x1b\r\u202e")
        assert not any(line.startswith("# ") for line in text.splitlines())


def test_help_tells_the_exit_statuses_and_has_examples():
    text = " ".join(compare("--help").stdout.split())
    for part in (
        "Exit status: 1 for a regression",
        "3 when a case is undecided",
        "--markdown >>",
        "--max-regression 5%",
    ):
        assert part in text
