"""Every figure of a report is written down once, and can be made again as it is written."""

import math
from pathlib import Path

import pytest
from tests.reduce.build import MEASURE, SHAPE, make_case, make_packing, make_trace
from tests.reference import PATH, gb300, published

from moebench.reduce.estimators import ESTIMATORS
from moebench.reduce.load import load_report
from moebench.reduce.recompute import agrees, case_of, from_row, from_traces, number
from moebench.reduce.row import case_row
from moebench.reduce.schema import CaseRow, Comparison, Floor, Meta
from moebench.show.frames import CASE_DTYPES, PAIR_DTYPES

NO_FIGURES = {"F", "ep", "layers", "imbalance", "attempt", "attempts"}
"""Numbers of a row that say what was done, and measure nothing."""


def test_every_figure_of_a_row_has_an_estimator_and_every_estimator_is_of_a_figure():
    figures = {
        key
        for key, field in CaseRow.model_fields.items()
        if any(kind in str(field.annotation) for kind in ("int", "float")) and key not in NO_FIGURES
    }
    assert figures <= set(ESTIMATORS)
    known = {*CaseRow.model_fields, *CASE_DTYPES, *PAIR_DTYPES, *Comparison.model_fields, *Floor.model_fields}
    assert set(ESTIMATORS) <= known


@pytest.mark.parametrize("key", ESTIMATORS)
def test_an_estimator_says_all_of_itself(key: str):
    metric = ESTIMATORS[key]
    assert all((metric.title, metric.unit, metric.formula, metric.estimator, metric.not_for))
    assert metric.inputs or metric.trace
    assert metric.not_for.endswith(".")
    assert metric.description == f"{metric.title}, {metric.unit}: {metric.estimator}"


@pytest.mark.parametrize("case_id", published())
def test_published_rates_are_made_again_from_the_row_alone(case_id: str):
    report = load_report(PATH)
    row = next(row for row in report.cases if row.id == case_id)
    again = from_row(report.meta, row)
    for key in ("usefulTFPerGPU", "modeledHBMGBps"):
        assert agrees(again[key].value, getattr(row, key))
    case, known = case_of(report.meta, row), gb300()[case_id]
    assert (case.id, case.shape, case.layer_imbalances) == (known.id, known.shape, known.layer_imbalances)


META = Meta(T=SHAPE.T, D=SHAPE.D, E=SHAPE.E, K=SHAPE.K, F=SHAPE.F, sharedExperts=SHAPE.S, profiles={"A": [1.5, 0.5]})


@pytest.mark.parametrize(
    "case", [make_case(), make_case(ep=1), make_packing("dist_moe"), make_packing("mok")], ids=lambda case: case.id
)
@pytest.mark.parametrize("source", ["transport", "logical"])
def test_row_and_traces_together_give_every_figure_of_a_row_again(case, source: str):
    other = {"traffic_source": source, "tx_bytes_by_kind": {"dispatch": 1000, "replay dispatch": 30}}
    traces = [
        make_trace(case, rank, [[2.0 + rank, 3.0], [4.0, 2.0 - rank]], peak_reserved_bytes=7 + rank, **other)
        for rank in range(case.ep)
    ]
    for rank, trace in enumerate(traces):
        for window in trace.windows:
            window.begun_ns = 1000 * rank
    row = case_row(case, traces, SHAPE, MEASURE)
    again = from_row(META, row) | from_traces(row, traces)
    figures = {key: getattr(row, key) for key in ESTIMATORS if key in CaseRow.model_fields}
    assert {key for key, value in figures.items() if value is not None} <= set(again)
    for key, value in figures.items():
        assert key not in again or agrees(again[key].value, value), key


def test_inputs_of_a_figure_name_the_rank_that_decides_each_window():
    case = make_case()
    traces = [make_trace(case, 0, [[5.0, 5.0], [1.0, 1.0]]), make_trace(case, 1, [[2.0, 2.0], [3.0, 4.0]])]
    again = from_traces(case_row(case, traces, SHAPE, MEASURE), traces)
    assert again["windowMS"].inputs == "slowest rank of each window: 0, 1; its mean: 5, 3.5"
    assert again["floorMS"].inputs == "fastest rank of each window: 1, 0; its mean: 2, 1"
    assert again["meanTXGBps"].inputs == "rank 0: 32000 bytes in 0.012 s, rank 1: 32000 bytes in 0.011 s"
    assert again["peakAllocatedGiB"].inputs == "rank 0: 1, rank 1: 1"
    packing = make_packing()
    halves = [make_trace(packing, rank, [[4.0 - rank, 4.0 - rank]] * 2) for rank in range(2)]
    again = from_traces(case_row(packing, halves, SHAPE, MEASURE), halves)
    for key in ("forwardMS", "backwardMS"):
        assert again[key].inputs == "slowest rank of each window: 0, 0; its mean: 2, 2"


def test_figures_of_many_ranks_are_told_of_the_first():
    case = make_case(ep=4, shape=SHAPE.model_copy(update={"E": 12}))
    traces = [make_trace(case, rank) for rank in range(4)] * 3
    told = from_traces(case_row(case, traces, SHAPE, MEASURE), traces)["peakAllocatedGiB"].inputs
    assert told.endswith("rank 7: 1 and 4 ranks more")


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ({"pipeline": "mine"}, {"usefulTFPerGPU", "modeledHBMGBps", "logicalTXBytes"}),
        ({"imbalance": 9.0}, {"usefulTFPerGPU", "modeledHBMGBps", "logicalTXBytes"}),
        ({"layers": 2**40}, {"usefulTFPerGPU", "modeledHBMGBps", "logicalTXBytes"}),
        ({"windowMS": [1.0]}, {"skewMS"}),
        ({"windowMS": None}, {"iterationMS", "spread", "skewMS"}),
    ],
)
def test_what_a_row_does_not_allow_is_left_out(keys, missing: set[str]):
    row = case_row(make_case(), [make_trace(make_case(), rank) for rank in range(2)], SHAPE, MEASURE)
    whole = set(from_row(META, row))
    changed = CaseRow.model_validate(row.model_dump(exclude_unset=True) | keys)
    assert whole - set(from_row(META, changed)) == missing


def test_figures_agree_but_for_rounding():
    assert agrees([1.0, 2.0], [1.0 + 1e-12, 2.0])
    assert agrees({"dispatch": 1}, {"dispatch": 1.0})
    assert agrees(None, None)
    for one, other in (([1.0], [1.0, 2.0]), ({"a": 1}, {"b": 1}), (1.0, 1.000001), (0.0, None), (math.inf, 1.0)):
        assert not agrees(one, other)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (88080384.0, "88080384"), (0.12345678, "0.123457"), (1e20, "1e+20")]
)
def test_numbers_are_told_whole_or_to_six_digits(value, text: str):
    assert number(value) == text


def test_readme_has_the_table_of_estimators():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for key, metric in ESTIMATORS.items():
        assert f"| `{key}` | {metric.unit} | {metric.formula} | {metric.estimator} |" in readme, key
