"""Comparisons of cases whose windows alternated: literal figures, and what is left out."""

import json
import math

import pytest
from tests.reduce.build import MEASURE, RunFolder, make_case, make_traces, make_window

from moebench.rank.trace import Alternation
from moebench.reduce.comparisons import blocks_for, compare_groups
from moebench.reduce.report import reduce_runs, to_json
from moebench.status import Status

BLOCKS = 8
PAIRED = MEASURE.model_copy(update={"paired": True, "windows": 2 * BLOCKS})


def windows(factor, noise=0.0):
    """Two windows in each block; time rises by 1 in each block, which both arms share."""
    return [[factor * (10 + block + noise * (-1) ** block)] * 2 for block in range(BLOCKS) for _ in range(2)]


def paired_run(path, factors, group="run/001/1", groups=None, aa=1.0):
    """A run folder of a paired sweep of backends, whose windows take these factors of a common time."""
    cases = [make_case(name, measure=PAIRED) for name in factors]
    run = RunFolder(path, cases)
    for number, (case, factor) in enumerate(zip(cases, factors.values(), strict=True)):
        mine = (groups or {}).get(case.backend, group)
        run.note(case)
        changes = {"alternation": Alternation(group=mine, blocks=BLOCKS, together=True)}
        if number == 0:
            changes["aa_windows"] = [make_window(ms) for ms in windows(factor * aa)]
        run.deliver(make_traces(case, windows(factor), **changes))
        run.note(case, Status.ACCEPTED)
    return reduce_runs([path])


def test_every_dist_moe_case_is_compared_with_mok_and_all_with_torch(tmp_path):
    report = paired_run(tmp_path / "run", {"dist_moe": 1.0, "mok": 1.25, "torch": 1.1})
    found = {(one.case[:4], one.baseline[:4]): one for one in report.comparisons}
    assert [*found] == [("dist", "mok-"), ("mok-", "torc"), ("dist", "torc")]
    one = found["dist", "mok-"]
    assert (one.fasterBy, one.low, one.high) == pytest.approx((1.25, 1.25, 1.25))
    assert (one.blocks, one.level) == (8, pytest.approx(0.9609375))
    assert (one.pValue, one.adjustedPValue) == (pytest.approx(2 / 2**8), pytest.approx(3 * 2 / 2**8))
    assert (one.verdict, found["mok-", "torc"].verdict) == ("faster", "slower")
    assert found["mok-", "torc"].fasterBy == pytest.approx(1.1 / 1.25)


def test_the_a_a_pair_of_the_group_is_its_floor(tmp_path):
    (floor,) = paired_run(tmp_path / "run", {"dist_moe": 1.0, "mok": 1.25}).floors
    assert (floor.case[:8], floor.ratio, floor.effect, floor.biased) == ("dist_moe", 1.0, 0.0, False)
    (biased,) = paired_run(tmp_path / "bias", {"dist_moe": 1.0, "mok": 1.25}, aa=1.02).floors
    assert (biased.ratio, biased.biased) == (pytest.approx(1.02), True)
    assert biased.effect == pytest.approx(0.02)


def test_within_one_percent_is_the_same(tmp_path):
    report = paired_run(tmp_path / "run", {"dist_moe": 1.0, "mok": 1.005})
    assert report.comparisons[0].verdict == "same"


def test_cases_of_different_groups_are_not_compared(tmp_path):
    report = paired_run(tmp_path / "run", {"dist_moe": 1.0, "mok": 1.25}, groups={"mok": "run/002/1"})
    assert report.comparisons == []
    assert len(report.pairs) == 1


def test_an_ordinary_report_has_neither_comparisons_nor_floors(tmp_path):
    run = RunFolder(tmp_path / "run", [make_case("mok")])
    run.run(make_case("mok"))
    raw = json.loads(to_json(reduce_runs([tmp_path / "run"])))
    assert not {"comparisons", "floors"} & raw.keys()
    assert "paired" not in raw["cases"][0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"alternation": None}, "its windows did not alternate"),
        ({"aa_windows": [make_window([1.0, 1.0])]}, "1 A/A windows, asked for 16"),
    ],
)
def test_an_execution_that_was_not_paired_as_asked_is_incomplete(tmp_path, change, reason):
    case = make_case("mok", measure=PAIRED)
    run = RunFolder(tmp_path / "run", [case])
    changes = {"alternation": Alternation(group="g", blocks=BLOCKS, together=True)} | change
    run.note(case)
    run.deliver(make_traces(case, windows(1.0), **changes))
    run.note(case, Status.ACCEPTED)
    (row,) = reduce_runs([tmp_path / "run"]).rejected
    assert (row.reason, reason in row.message) == ("incomplete", True)


def test_windows_that_no_clock_measured_are_not_compared(tmp_path):
    rows = paired_run(tmp_path / "run", {"dist_moe": 1.0, "mok": 1.25}).cases
    zero = [row.model_copy(update={"windowMS": [0.0, *row.windowMS[1:]]}) for row in rows]
    short = [row.model_copy(update={"windowMS": row.windowMS[1:]}) for row in rows]
    assert compare_groups(zero).comparisons == compare_groups(short).comparisons == []


def test_default_blocks_can_carry_all_claims_at_once():
    group = [make_case("dist_moe"), make_case("mok"), make_case("torch")]
    assert blocks_for([group]) == 9
    assert blocks_for([[make_case("torch")]]) == 8
    for groups in (1, 10, 100):
        blocks = blocks_for([group] * groups)
        assert 3 * groups * 2 / 2**blocks <= 0.05
        assert blocks <= 4 + math.ceil(math.log2(2 * 3 * groups / 0.05))
