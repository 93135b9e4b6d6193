"""Nothing that a log, a file or a name holds acts on the terminal that shows it."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress

import pytest
from rich.table import Table
from tests.reduce.build import RunFolder, make_case
from tests.show.build import row, sweep

from moebench.cases.matrix import find_matrix
from moebench.cli import app
from moebench.cli.progress import SweepProgress
from moebench.launch.supervisor import Ending
from moebench.reduce.write import to_json
from moebench.show.console import make_console
from moebench.status import Reason, Status

SEQUENCES = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\u202e"]
"""Sets the window's title, clears the screen, colours, turns the direction of writing. Rich itself sends none."""
ATTACK = "".join(SEQUENCES)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def acting(text: str) -> list[str]:
    return [ascii(part) for part in (*SEQUENCES, "\x07") if part in text]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Where standard output and standard error of `shown_by` go."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def shown_by(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """What a command prints on a terminal, with its error message if it has one."""
    monkeypatch.setattr(sys, "argv", ["moebench", *map(str, arguments)])
    with redirect_stdout(terminal), redirect_stderr(terminal), suppress(SystemExit):
        app.main()
    return terminal.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", ATTACK),
        ("pair", ATTACK),
        ("reduce", ATTACK),
        ("reduce", ".", "-o", ATTACK),
        ("cases", "-m", ATTACK),
        ("cases", "-m", f"{ATTACK}.toml"),
        ("cases", "-k", ATTACK),
        ("cases", "--ep", ATTACK),
        ("cases", "--model", ATTACK),
        ("cases", "--backend", ATTACK),
        ("cases", "--backend", f"{ATTACK}:{ATTACK}"),
        ("sweep", "--device", ATTACK),
        ("sweep", "--inject", ATTACK),
        ("sweep", "--resume", ATTACK),
        ("sweep", "--retry", ATTACK),
        ("sweep", "--out", f"/proc/{ATTACK}"),
    ],
)
def test_mistake_is_told_without_obeying_it(terminal, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    text = shown_by(terminal, monkeypatch, *arguments)
    assert text.startswith("moebench: ")
    assert acting(text) == []


@pytest.mark.parametrize("command", ["cases", "plan"])
def test_name_of_a_matrix_is_shown_without_obeying_it(terminal, monkeypatch, tmp_path, command):
    path = tmp_path / f"{ATTACK}.toml"
    path.write_text(find_matrix("conformance").read_text())
    text = shown_by(terminal, monkeypatch, command, "-m", path, "--ep", "7")
    assert "ep replaced by 7 in every block: \\x1b]0;owned" in " ".join(text.split())
    assert acting(text) == []


def test_report_and_its_logs_are_shown_without_obeying_them(terminal, monkeypatch, tmp_path):
    raw = json.loads(to_json(sweep()))
    raw["cases"].append(row("mok", 2.0, ATTACK, category=ATTACK, profile=ATTACK, environment={"hardware": ATTACK}))
    raw["rejected"][0] |= {"id": ATTACK, "message": ATTACK, "log": f"{ATTACK}\n{ATTACK}", "stale": ATTACK}
    path = tmp_path / f"{ATTACK}.json"
    path.write_text(json.dumps(raw))
    text = shown_by(terminal, monkeypatch, "show", path)
    assert "\\x1b]0;owned" in text
    assert acting(text) == []


def test_run_folder_is_reduced_without_obeying_its_name(terminal, monkeypatch, tmp_path):
    case = make_case()
    run = RunFolder(tmp_path / ATTACK, [case])
    run.run(case)
    run.note(case, Status.FAILED, attempt=2, reason=Reason.CRASHED, message=ATTACK, log=ATTACK)
    text = shown_by(terminal, monkeypatch, "reduce", run.path)
    assert "\\x1b]0;owned" in text
    assert acting(text) == []


def test_backends_are_listed_without_obeying_them(terminal, monkeypatch):
    support = {"precision": ATTACK, "pipelines": [ATTACK], "modes": []}
    found = [
        {"name": ATTACK, "implementations": [{"implementation": ATTACK, "supports": [support], "missing": ATTACK}]}
    ]
    monkeypatch.setattr("moebench.backends.registry.describe_backends", lambda: found)
    text = shown_by(terminal, monkeypatch, "backends")
    assert "\\x1b]0;owned" in text
    assert acting(text) == []


def test_live_line_and_the_lines_of_ended_cases_obey_nothing(terminal, monkeypatch):
    ending = Ending(Status.FAILED, Reason.CRASHED, message=ATTACK, log=f"{ATTACK}\r\n{ATTACK}")
    with SweepProgress(make_console(file=terminal), {ATTACK: 1.0, "b": 1.0}, {}) as progress:
        progress.phase(ATTACK, ATTACK)
        progress._live.refresh()
        progress.ended(ATTACK, ending, 1.0, again=True)
        progress.ended(ATTACK, ending, 1.0, again=False)
    text = terminal.getvalue()
    assert "\\x1b]0;owned" in text
    assert acting(text) == []


def test_whatever_is_printed_as_a_str_is_clean_line_by_line():
    stream = Terminal()
    console = make_console(file=stream, width=100)
    table = Table(ATTACK)
    table.add_row(ATTACK)
    console.print(f"first\n{ATTACK}", table)
    assert stream.getvalue().splitlines()[0].rstrip() == "first"
    assert stream.getvalue().count("\\x1b]0;owned\\x07") == 3
    assert acting(stream.getvalue()) == []
