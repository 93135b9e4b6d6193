"""`moebench doctor` on the machine of the tests, started once; and how a diagnosis reads."""

import io
import json

import pytest
import typer
from typer.testing import CliRunner

from moebench.cli.doctor import doctor, print_diagnosis
from moebench.launch.doctor import Diagnosis
from moebench.show.console import make_console

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def started():
    app = typer.Typer()
    app.command("doctor")(doctor)
    return CliRunner().invoke(app, ["--json"])


@pytest.fixture(scope="module")
def diagnosis(started):
    return Diagnosis.model_validate_json(started.stdout)


def printed(diagnosis, width=80):
    file = io.StringIO()
    print_diagnosis(diagnosis, make_console(file=file, width=width))
    return file.getvalue()


def test_exit_status_says_whether_a_finding_stops(started):
    stops = [finding for finding in json.loads(started.stdout)["findings"] if finding["stops"]]
    assert started.exit_code == (1 if stops else 0), stops


def test_ranks_of_this_machine_talk_and_are_timed(diagnosis):
    test = diagnosis.collectives
    assert (test.passed, test.error) == (True, None)
    assert test.ranks >= 2
    assert 0 < test.latency_us < 1e6
    assert 0.001 < test.bandwidth_gbps < 10_000


def test_machine_torch_and_every_backend_are_described(diagnosis):
    assert diagnosis.host.cores >= 1
    assert diagnosis.host.loopback.startswith("lo")
    assert diagnosis.torch.error is None
    states = {(backend.name, backend.implementation): backend.missing for backend in diagnosis.backends}
    assert states["torch", "portable"] is None
    assert {("dist_moe", "library"), ("mok", "library"), ("dist_moe", "portable"), ("mok", "portable")} <= set(states)


def test_text_fits_80_columns_without_trailing_space_and_names_each_section(diagnosis):
    text = printed(diagnosis)
    for line in text.splitlines():
        assert len(line) <= 80
        if line.startswith("  "):
            assert line == line.rstrip()
    for heading in ("Machine", "GPUs", "torch", "Backends", "Collectives", "Findings"):
        assert heading in text.splitlines()


def test_what_stops_is_said_with_its_remedy_and_nothing_acts_on_the_terminal(diagnosis):
    from moebench.launch.doctor import Finding

    bad = Finding(stops=True, what="a \x1b[31mbad\x1b[0m thing [bold]", remedy="cure it")
    text = printed(diagnosis.model_copy(update={"findings": [bad]}))
    assert "  STOPS             a \\x1b[31mbad\\x1b[0m thing [bold]." in text
    assert "-> cure it" in text
    assert "Cure what STOPS" in text
    assert "\x1b" not in text
