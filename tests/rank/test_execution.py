"""Agreement, and what an execution makes of it, in one process."""

import weakref

import pytest
import torch
from tests.reduce.build import make_case

from moebench.backends.torch_ep import TorchBackend
from moebench.cases.fault import parse_fault
from moebench.rank import agree as agreement
from moebench.rank import execution
from moebench.rank.agree import Verdict, agree
from moebench.rank.execution import Execution, StopAsked
from moebench.rank.progress import Progress
from moebench.status import Reason, Status

CPU = torch.device("cpu")


def test_every_rank_hears_every_verdict(monkeypatch):
    def reduce(mine):
        mine += torch.tensor([0, int(Verdict.CRASHED), 0], dtype=torch.int32)

    monkeypatch.setattr(agreement.dist, "all_reduce", reduce)
    assert agree(Verdict.UNSUPPORTED, 2, 3, CPU) == [Verdict.OK, Verdict.CRASHED, Verdict.UNSUPPORTED]


def test_one_rank_agrees_with_itself():
    assert agree(Verdict.INCORRECT, 0, 1, CPU) == [Verdict.INCORRECT]


@pytest.fixture
def executed(monkeypatch, tmp_path):
    """An execution at ep 1 of a backend class, with the verdicts of imagined peers."""
    monkeypatch.setattr(execution, "environment", lambda device: {})
    monkeypatch.setattr("moebench.rank.timing.dist.barrier", lambda: None)

    def run(backend_class=TorchBackend, stop=False, others=(), faults=()):
        monkeypatch.setattr(execution, "backend_of", lambda case: backend_class)
        monkeypatch.setattr(execution, "agree", lambda mine, *_: [mine, *others])
        progress = Progress(tmp_path / "events.jsonl")
        one = Execution(make_case("torch", 1), 1, 0, CPU, progress, lambda: stop, None, faults)
        one.run()
        return one.trace

    return run


class Closes(TorchBackend):
    closed = 0

    def close(self):
        type(self).closed += 1


def failing(where, error):
    class Failing(Closes):
        @classmethod
        def unsupported(cls, case):
            if where == "support":
                raise error

        def __init__(self, setup):
            if where == "set-up":
                raise error
            super().__init__(setup)

    return Failing


def test_a_case_that_works_is_measured_and_checked_twice(executed):
    trace = executed()
    assert (trace.status, trace.phase, trace.reason) == (Status.ACCEPTED, "done", None)
    assert (len(trace.windows), {c.when for c in trace.checks}) == (2, {"before", "after"})
    assert trace.realised is not None
    assert (trace.realised.remote_rows_sent, sum(trace.tx_bytes_by_kind.values())) == ([0], 0)
    assert trace.memory_source in ("rss", None)


@pytest.mark.parametrize("where", ["support", "set-up"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), Reason.CRASHED),
        (SystemExit("no licence"), Reason.CRASHED),
        (torch.OutOfMemoryError("too big"), Reason.OUT_OF_MEMORY),
        (MemoryError("too big"), Reason.OUT_OF_MEMORY),
    ],
)
def test_failure_before_the_first_collective_is_recorded_with_its_phase(executed, where, error, reason):
    trace = executed(failing(where, error))
    assert (trace.status, trace.reason, trace.phase) == (Status.FAILED, reason, where)
    assert str(error) in trace.message
    assert where in trace.message
    assert trace.stack.rstrip().endswith(f"{type(error).__name__}: {error}")


class Large:
    """Stands for memory that a trace needs to be written."""


def test_a_recorded_failure_lets_go_of_what_its_frames_hold(monkeypatch, tmp_path):
    monkeypatch.setattr(execution, "environment", lambda device: {})
    one = Execution(make_case("torch", 1), 1, 0, CPU, Progress(tmp_path / "events.jsonl"), lambda: False)
    held = []

    def fails():
        large = Large()
        held.append(weakref.ref(large))
        raise MemoryError("no more")

    with pytest.raises(MemoryError) as failure:
        fails()
    assert one.record(failure.value) is Reason.OUT_OF_MEMORY
    assert held[0]() is None
    assert "in fails" in one.trace.stack


@pytest.mark.parametrize(
    ("fault", "injected", "status"),
    [
        ("raise:rank=0,phase=set-up", True, Status.FAILED),
        ("nan:rank=0", True, Status.REJECTED),
        ("sleep:rank=0,seconds=0.001", True, Status.ACCEPTED),
        ("raise:rank=0,phase=set-up,attempt=2", False, Status.ACCEPTED),
        ("raise:rank=0,phase=set-up,case=mok-*", False, Status.ACCEPTED),
        ("raise:rank=1,phase=set-up", False, Status.ACCEPTED),
    ],
)
def test_a_fault_strikes_only_the_case_that_it_is_meant_for_whose_trace_says_so(executed, fault, injected, status):
    trace = executed(faults=[parse_fault(fault)])
    assert trace.injected == ([str(parse_fault(fault))] if injected else [])
    assert trace.status is status


def test_a_peers_failure_ends_the_case_here_and_closes_the_backend(executed):
    class Peer(Closes):
        closed = 0

    trace = executed(Peer, others=[Verdict.CRASHED])
    assert (trace.status, trace.reason) == (Status.FAILED, Reason.CRASHED)
    assert trace.message == "rank 1 could not go on in support"
    assert Peer.closed == 0


def test_backend_is_closed_once(executed):
    class Once(Closes):
        closed = 0

    executed(Once)
    assert Once.closed == 1


def test_unsupported_is_no_failure(executed):
    class Picky(TorchBackend):
        @classmethod
        def unsupported(cls, case):
            return "needs Blackwell"

    trace = executed(Picky)
    assert (trace.status, trace.reason, trace.message) == (Status.UNSUPPORTED, None, "needs Blackwell")


@pytest.mark.parametrize("stop", [(True, ()), (False, (Verdict.STOP,))])
def test_asked_to_stop_no_rank_begins_the_case(executed, stop):
    with pytest.raises(StopAsked):
        executed(stop=stop[0], others=stop[1])
