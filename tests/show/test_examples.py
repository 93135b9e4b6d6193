"""The reports in examples/ are whole, say what they are shown to say, and are of the matrices that ship."""

from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from moebench.cases.expand import Flags, select
from moebench.cases.matrix import load_matrix
from moebench.cli.show import show
from moebench.reduce.load import load_report
from moebench.reduce.pairs import differing_pairs

EXAMPLES = Path(__file__).parents[2] / "examples"
MATRICES = {"h200": ("h200", Flags()), "nvlink-ep2": ("nvlink", Flags(ep=[2]))}

app = typer.Typer()
app.command()(show)
report = cache(load_report)


def test_every_example_is_known_here():
    assert {path.stem for path in EXAMPLES.glob("*.json")} == set(MATRICES)


@pytest.mark.parametrize("name", MATRICES)
def test_an_example_has_every_case_of_its_matrix_as_the_matrix_measures_it(name):
    matrix, flags = MATRICES[name]
    found, planned = report(EXAMPLES / f"{name}.json"), select(load_matrix(matrix), flags).cases
    rows = {row.id: row for row in found.cases}
    assert {*rows, *(rejected.id for rejected in found.rejected or [])} == {case.id for case in planned}
    for case in planned:
        if case.id in rows:
            measured, asked = rows[case.id].measure or found.meta, case.measure
            assert (measured.windows, measured.iterationsPerWindow) == (asked.windows, asked.iterations), case.id


@pytest.mark.parametrize("name", MATRICES)
def test_an_example_pairs_as_it_did_and_can_be_shown(name):
    path = EXAMPLES / f"{name}.json"
    assert differing_pairs(report(path)) == []
    shown = CliRunner().invoke(app, [str(path)], env={"COLUMNS": "80"})
    assert shown.exit_code == 0
    assert f"\n{len(report(path).cases)} of " in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_nvlink_counters_of_the_example_are_the_bytes_of_its_ledger():
    for row in report(EXAMPLES / "nvlink-ep2.json").cases:
        assert row.trafficSource == "nvlink"
        assert row.meanTXGBps is not None
        assert row.txBytesByKind is not None
        counted = row.meanTXGBps * 1e6 * row.iterationMS
        assert counted == pytest.approx(sum(row.txBytesByKind.values()), rel=0.005), row.id
