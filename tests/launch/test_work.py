"""What a resumed run runs again, what it keeps, and what it calls stale."""

import pytest
from tests.reduce.build import make_case

from moebench.cases.case import Measure
from moebench.cases.machine import Machine
from moebench.cases.plan import Plan, Planned
from moebench.cases.shape import Shape
from moebench.launch import surroundings as surroundings_module
from moebench.launch.history import History
from moebench.launch.journal import Entry, Sweep
from moebench.launch.surroundings import case_key, surroundings, what_changed
from moebench.launch.work import work
from moebench.status import Reason, Status

HERE = {"code": "abc", "torch": "2.11", "device": "H200"}
CASE = make_case("torch")


def plan(*cases, **planned):
    shape = Shape(T=8, D=32, E=4, K=2, F=16)
    return Plan(
        matrix="m", shape=shape, measure=Measure(), profiles={}, cases=[Planned(case=c, **planned) for c in cases]
    )


def history(status=None, reason=None, around=HERE, case=CASE):
    """One attempt, begun in surroundings `around`, and how it ended."""
    key = case_key(case, around)
    lines = [Sweep(pid=1, host="h", surroundings=around), Entry(case=case.id, attempt=1, key=key)]
    if status is not None:
        lines.append(Entry(case=case.id, attempt=1, key=key, status=status, reason=reason))
    return History(lines)


def resumed(past, *, retry=(), around=HERE, new=CASE, old=CASE):
    return work(plan(new), lambda case: around, plan(old), past, retry)


@pytest.mark.parametrize(
    ("end", "retry", "runs"),
    [
        ((Status.ACCEPTED, None), [], False),
        ((Status.ACCEPTED, None), ["accepted"], True),
        ((Status.REJECTED, Reason.INCORRECT), [], False),
        ((Status.REJECTED, Reason.INCORRECT), ["incorrect"], True),
        ((Status.REJECTED, Reason.INCORRECT), ["rejected"], True),
        ((Status.UNSUPPORTED, None), [], False),
        ((Status.UNSUPPORTED, None), ["unsupported"], True),
        ((Status.REJECTED, Reason.SPREAD), [], True),
        ((Status.FAILED, Reason.CRASHED), [], True),
        ((None, None), [], True),
        ((Status.ACCEPTED, None), ["stale", "crashed"], False),
    ],
)
def test_finished_cases_are_kept_unless_asked_for(end, retry, runs):
    found = resumed(history(*end), retry=retry)
    assert [todo.attempt for todo in found.todo] == ([2] if runs else [])
    assert found.stale == []


def test_a_new_sweep_runs_everything_that_can_run():
    one, other = CASE, make_case("mok")
    found = work(
        plan(one).model_copy(update={"cases": [Planned(case=one), Planned(case=other, unsupported="no")]}),
        lambda case: HERE,
    )
    assert [(todo.case, todo.attempt, todo.key) for todo in found.todo] == [(one, 1, case_key(one, HERE))]
    assert found.surroundings == HERE


CHANGED = [
    ({"code": "def"}, "the code that ranks run has changed"),
    ({"torch": "2.12"}, "torch was 2.11, is 2.12"),
    ({"device": "H100"}, "device was H200, is H100"),
    ({"triton": "3"}, "triton was absent, is 3"),
    ({"code of mine": "x"}, "the code of mine has changed"),
]


@pytest.mark.parametrize(("change", "why"), CHANGED)
def test_other_surroundings_make_a_finished_case_stale_and_it_is_kept(change, why):
    past = history(Status.ACCEPTED)
    found = resumed(past, around=HERE | change)
    assert (found.todo, [planned.stale for planned in found.stale]) == ([], [why])
    again = resumed(past, around=HERE | change, retry=["stale"])
    assert ([todo.attempt for todo in again.todo], again.stale) == ([2], [])


def test_a_changed_matrix_makes_it_stale_and_the_case_that_was_measured_stays_in_the_plan():
    new = CASE.model_copy(update={"measure": CASE.measure.model_copy(update={"windows": 7, "seed": 3})})
    (stale,) = resumed(history(Status.ACCEPTED), new=new).stale
    assert stale.case == CASE
    assert stale.stale == "measure.windows was 2, is 7; measure.seed was 0, is 3"
    again = resumed(history(Status.ACCEPTED), new=new, retry=["stale"])
    assert [planned.case for planned in again.plan.cases] == [new]


def test_an_unfinished_case_runs_as_the_matrix_has_it_now():
    new = CASE.model_copy(update={"measure": Measure(windows=7)})
    assert [todo.case for todo in resumed(history(Status.FAILED, Reason.CRASHED), new=new).todo] == [new]


def test_a_case_that_left_the_matrix_is_kept_and_says_so():
    found = work(plan(make_case("mok")), lambda case: HERE, plan(CASE), history(Status.ACCEPTED))
    assert {one.case.id: one.stale for one in found.plan.cases} == {
        make_case("mok").id: None,
        CASE.id: "the matrix no longer has this case",
    }
    assert [todo.case.id for todo in found.todo] == [make_case("mok").id]


def test_a_case_that_could_not_run_here_is_finished():
    past = work(plan(CASE), lambda case: HERE, plan(CASE, unsupported="too large"), History([]))
    assert (past.todo, past.plan.cases[0].unsupported) == ([], "too large")
    asked = work(plan(CASE), lambda case: HERE, plan(CASE, unsupported="too large"), History([]), ["unsupported"])
    assert len(asked.todo) == 1


def test_the_key_is_of_all_that_a_case_and_its_surroundings_say():
    keys = {
        case_key(case, around)
        for case in (CASE, CASE.model_copy(update={"measure": Measure(seed=1)}))
        for around in (HERE, HERE | {"torch": "3"})
    }
    assert len(keys) == 4
    assert case_key(CASE, dict(reversed(HERE.items()))) == case_key(CASE, HERE)


def test_surroundings_are_the_sources_that_ranks_run_the_libraries_and_the_device(tmp_path, monkeypatch):
    machine = Machine(cores=2, available_bytes=1, processor="EPYC", gpu_names=("H200, driver 5", "H200, driver 5"))
    found = surroundings(CASE, machine, "auto")
    assert found["device"] == "H200, driver 5"
    assert surroundings(CASE, machine, "cpu")["device"] == "EPYC, 2 cores"
    assert {"code", "torch", "numpy"} <= found.keys()

    (tmp_path / "mine").mkdir()
    source = tmp_path / "mine" / "backend.py"
    source.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = CASE.model_copy(update={"backend_path": "mine.backend:Mine"})
    before = surroundings(own, machine, "cpu")
    source.write_text("pass")
    surroundings_module._CODE.clear()
    after = surroundings(own, machine, "cpu")
    assert what_changed(own, own, before, after) == "the code of mine has changed"
    monkeypatch.undo()
    assert what_changed(own, own, before, surroundings(own, machine, "cpu")) == "the code of mine is not found here"
    assert what_changed(own, own, {}, after) == "what it was measured with is not known"


@pytest.mark.parametrize(("folder", "changes"), [("rank", True), ("cases", True), ("show", False), ("launch", False)])
def test_code_that_no_rank_runs_makes_nothing_stale(folder, changes, tmp_path, monkeypatch):
    root = tmp_path / "moebench"
    for name in ("rank", "backends", "quant", "cases", "show", "launch"):
        (root / name).mkdir(parents=True)
        (root / name / "a.py").write_text("one = 1")
    monkeypatch.setattr(surroundings_module.moebench, "__file__", str(root / "__init__.py"))
    machine = Machine(cores=2, available_bytes=1)
    before = surroundings(CASE, machine, "cpu")["code"]
    (root / folder / "a.py").write_text("one = 2")
    surroundings_module._CODE.clear()
    assert (surroundings(CASE, machine, "cpu")["code"] != before) == changes
    surroundings_module._CODE.clear()
