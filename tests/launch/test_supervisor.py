"""The supervisor over launches that never come up, and a torchrun that is not one."""

import sys

import pytest
from tests.reduce.build import make_case

from moebench.errors import MoebenchError
from moebench.launch import supervisor, torchrun
from moebench.launch.journal import Journal
from moebench.launch.supervisor import Ending, Limits, Supervisor, Todo
from moebench.status import Reason, Status

CASES = [make_case("torch"), make_case("mok"), make_case("torch", 4)]


class Silent:
    def __init__(self):
        self.launches, self.ends = [], {}

    def launching(self, ranks, cases, attempt):
        self.launches.append((ranks, cases))

    def phase(self, case_id, phase): ...
    def tick(self): ...

    def ended(self, case_id, ending, seconds, *, again):
        assert case_id not in self.ends
        assert not again
        self.ends[case_id] = ending


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """A supervisor whose torchrun is this Python program."""

    def make(program, cases=CASES, **limits):
        monkeypatch.setattr(torchrun, "command", lambda *_: [sys.executable, "-c", program])
        watcher = Silent()
        limits = Limits(**{"start_up_s": 60, "case_s": lambda case: 60, "budget_s": 600} | limits)
        todo = [Todo(case, key="k") for case in cases]
        return Supervisor(tmp_path, todo, "cpu", limits, lambda *_: Ending(Status.ACCEPTED), watcher), watcher

    return make


def test_after_three_launches_that_end_at_once_their_cases_fail_and_others_are_tried(supervised, tmp_path):
    one, watcher = supervised("print('address already in use'); raise SystemExit(1)")
    one.execute()
    assert watcher.launches == [(2, 2)] * 3 + [(4, 1)] * 3
    ends = [watcher.ends[case.id] for case in CASES]
    assert [(end.status, end.reason) for end in ends] == [
        (Status.NOT_RUN, None),
        (Status.FAILED, Reason.CRASHED),
        (Status.FAILED, Reason.CRASHED),
    ]
    for case, end in zip(CASES, ends, strict=True):
        assert end.message.startswith(f"3 launches of {case.ep} ranks in a row did not come up")
        assert ("address already in use" in (end.log or "")) == (end.status is Status.FAILED)
    assert [entry.case for entry in Journal(tmp_path).read() if entry.status] == list(watcher.ends)


def test_a_launch_whose_ranks_never_meet_is_ended(supervised):
    one, watcher = supervised("import time; time.sleep(1000)", cases=CASES[:1], start_up_s=0.3)
    one.execute()
    assert len(watcher.launches) == 3
    end = watcher.ends[CASES[0].id]
    assert (end.status, end.reason) == (Status.FAILED, Reason.TIMEOUT)
    assert "did not come up within 0.3 s" in end.message


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


def test_a_run_folder_that_takes_no_more_lines_ends_the_sweep_and_says_how_to_go_on(supervised, monkeypatch, tmp_path):
    one, _ = supervised("raise SystemExit(1)")
    monkeypatch.setattr(Journal, "add", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device", "j")))
    with pytest.raises(MoebenchError, match=r"j: No space left on device.* 0 of 3 cases .* sweep --resume"):
        one.execute()


def test_launches_of_a_resumed_run_are_numbered_on(supervised, tmp_path):
    (tmp_path / "logs" / "007-ep2").mkdir(parents=True)
    one, _ = supervised("raise SystemExit(1)", cases=CASES[:1])
    one.execute()
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {f"{n:03d}-ep2" for n in range(7, 11)}
