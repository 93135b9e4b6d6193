"""The supervisor over launches that never come up, and a torchrun that is not one."""

import sys

import pytest
from tests.reduce.build import make_case

from moebench.cases.case import Measure
from moebench.cases.plan import Plan, Planned
from moebench.cases.shape import Shape
from moebench.launch import supervisor, torchrun
from moebench.launch.journal import Journal
from moebench.launch.supervisor import Ending, Limits, Supervisor
from moebench.status import Reason, Status

CASES = [make_case("torch"), make_case("mok"), make_case("torch", 4)]


class Silent:
    def __init__(self):
        self.launches, self.ends = [], {}

    def launching(self, ranks, cases, attempt):
        self.launches.append((ranks, cases))

    def phase(self, case_id, phase): ...
    def tick(self): ...

    def ended(self, case_id, ending, seconds):
        assert case_id not in self.ends
        self.ends[case_id] = ending


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """A supervisor whose torchrun is this Python program."""

    def make(program, cases=CASES, **limits):
        monkeypatch.setattr(torchrun, "command", lambda *_: [sys.executable, "-c", program])
        plan = Plan(
            matrix="test",
            shape=Shape(T=8, D=32, E=4, K=2, F=16),
            measure=Measure(),
            profiles={},
            cases=[Planned(case=case) for case in cases],
        )
        watcher = Silent()
        limits = Limits(**{"start_up_s": 60, "case_s": 60} | limits)
        return Supervisor(tmp_path, plan, "cpu", limits, lambda *_: Ending(Status.ACCEPTED), watcher), watcher

    return make


def test_after_three_launches_that_end_at_once_their_cases_fail_and_others_are_tried(supervised, tmp_path):
    one, watcher = supervised("print('address already in use'); raise SystemExit(1)")
    one.execute()
    assert watcher.launches == [(2, 2)] * 3 + [(4, 1)] * 3
    for case in CASES:
        ending = watcher.ends[case.id]
        assert (ending.status, ending.reason) == (Status.FAILED, Reason.CRASHED)
        assert ending.message.startswith(f"3 launches of {case.ep} ranks in a row did not come up: ")
        assert "address already in use" in ending.message
    assert [entry.case for entry in Journal(tmp_path).read()] == list(watcher.ends)


def test_a_launch_whose_ranks_never_meet_is_ended(supervised):
    one, watcher = supervised("import time; time.sleep(1000)", cases=CASES[:1], start_up_s=0.3)
    one.execute()
    assert len(watcher.launches) == 3
    assert watcher.ends[CASES[0].id].status is Status.FAILED


def test_a_torchrun_that_ignores_sigterm_is_killed(supervised, monkeypatch):
    monkeypatch.setattr("moebench.launch.launch.TERM_S", 0.3)
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    one, watcher = supervised(program, cases=CASES[:1], start_up_s=1)
    one.execute()
    assert watcher.ends[CASES[0].id].status is Status.FAILED


def test_out_of_time_before_the_first_case_nothing_is_launched_but_everything_recorded(supervised):
    one, watcher = supervised("raise SystemExit(1)")
    one.stop("the time budget of 1 s was used up")
    one.execute()
    assert watcher.launches == []
    assert {(e.status, e.message) for e in watcher.ends.values()} == {
        (Status.NOT_RUN, "the time budget of 1 s was used up")
    }


def test_an_interrupt_leaves_an_ending_for_every_case_and_no_process(supervised, monkeypatch, tmp_path):
    one, watcher = supervised("import time; time.sleep(1000)")
    started = []
    launch = supervisor.Launch

    def remember(*arguments):
        started.append(launch(*arguments))
        return started[0]

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor, "Launch", remember)
    monkeypatch.setattr(watcher, "tick", interrupt)
    with pytest.raises(KeyboardInterrupt):
        one.execute()
    assert {ending.status for ending in watcher.ends.values()} == {Status.NOT_RUN}
    assert {(entry.case, entry.attempt) for entry in Journal(tmp_path).read()} == {(case.id, 0) for case in CASES}
    assert started[0]._process.returncode is not None
