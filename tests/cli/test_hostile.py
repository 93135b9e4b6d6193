"""Inputs that are wrong on purpose: one paragraph, exit status 2, nothing replaced, nothing left running."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.selection_app import fails

from moebench.errors import UsageError
from moebench.launch.folder import create_run_folder

MOEBENCH = [sys.executable, "-m", "moebench"]


@pytest.mark.parametrize("name", [":", ":b", "a:", "../x:y", "json:JSONDecoder", "no_such_module:X"])
def test_backend_that_is_no_backend_is_a_usage_error(name: str):
    assert "--backend" in fails(f"cases --backend {name}")


@pytest.mark.parametrize("body", ["import sys; sys.exit(0)", "def (", "raise RuntimeError('no')"])
def test_module_that_breaks_on_import_is_named(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_backend.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("broken_backend", None)
    assert "broken_backend cannot be imported" in fails("cases --backend broken_backend:X")


@pytest.mark.parametrize(
    "text", ["x = " + "1" * 5000, "x = " + "[" * 100_000, "\xff"], ids=["digits", "nested", "latin-1"]
)
def test_matrix_that_no_parser_likes_is_a_usage_error(text: str, tmp_path: Path):
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="latin-1")
    assert "not a TOML file" in fails(f"cases -m {path}")


@pytest.mark.parametrize("wanted", ["", ".", "/"])
def test_run_folder_needs_a_name(wanted: str):
    with pytest.raises(UsageError, match="--out"):
        create_run_folder(Path(wanted), "quick")


def test_run_folder_under_a_file_is_an_error_and_does_not_search_for_ever(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made"):
        create_run_folder(tmp_path / "file" / "run", "quick")


def test_reader_that_goes_away_is_no_error():
    command = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -m moebench plan --matrix gb300 | head -1', sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (command.returncode, command.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_full_disk_is_said_and_not_traced():
    with open("/dev/full", "w") as full:
        command = subprocess.run([*MOEBENCH, "cases"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert command.returncode == 2
    assert command.stderr.startswith("moebench: No space left on device")
    assert "Traceback" not in command.stderr
