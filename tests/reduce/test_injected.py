"""No number that a fault made passes for a measured one."""

from tests.reduce.build import RunFolder, make_case

from moebench.reduce.pairs import pairing
from moebench.reduce.report import reduce_runs
from moebench.show.marks import legend, marks

FAULT = "sleep:rank=1,phase=timing,seconds=1"


def test_its_row_says_so_is_marked_and_pairs_with_nothing(tmp_path):
    dist, mok = make_case("dist_moe"), make_case("mok")
    run = RunFolder(tmp_path / "run", [dist, mok])
    run.run(dist, injected=[FAULT])
    run.run(mok)
    report = reduce_runs([run.path])
    healthy, slept = report.cases
    assert slept.injected == [FAULT]
    assert "injected" not in healthy.model_dump(exclude_unset=True)
    assert [marks(slept), marks(healthy)] == ["IP", "P"]
    assert "mean nothing" in legend([slept])[0]
    found = pairing(report)
    assert found.matches == []
    assert {entry.reason for entry in found.unpaired} == {f"injected differs: dist_moe standard {FAULT}, mok none"}
