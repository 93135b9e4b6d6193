"""What each fault does to the process and the output of a rank, without peers."""

import faulthandler
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from tests.reduce.build import make_case

from moebench.backends import faulty
from moebench.backends.faulty import GARBAGE, InjectedFault, with_faults
from moebench.backends.protocol import Backend
from moebench.cases.fault import Phase, parse_fault

CPU = torch.device("cpu")
X_TD = torch.arange(1.0, 13.0).view(4, 3)


class Healthy(Backend):
    """A backend of someone else: faults are injected into any."""

    name = "healthy"

    @classmethod
    def unsupported(cls, case):
        return "too many ranks" if case.ep > 2 else None

    def layer(self, l, x_TD, ids_TK, scores_TK):
        return x_TD.clone()


def walk(text, last=Phase.TIMING, x_TD=X_TD):
    """Take a case with a fault through its phases up to `last`, and return y of that."""
    now, backend, y_TD = Phase.SUPPORT, None, None
    backend_class = with_faults(Healthy, [parse_fault(text)], CPU, lambda: now)
    for now in Phase:
        if now is Phase.SUPPORT:
            assert backend_class.unsupported(make_case()) is None
        elif now is Phase.SET_UP:
            backend = backend_class(None)
        else:
            y_TD = backend.layer(0, x_TD, None, None)
        if now is last:
            break
    return y_TD


def test_without_a_fault_a_backend_is_left_as_it_is():
    assert with_faults(Healthy, [], CPU, lambda: "timing") is Healthy


def test_a_backend_with_a_fault_keeps_its_name_and_what_it_says_of_itself():
    backend = with_faults(Healthy, [parse_fault("raise")], CPU, lambda: "support")
    assert (backend.name, backend.pipelines, backend.missing()) == ("healthy", Healthy.pipelines, None)
    assert [backend.unsupported(make_case(ep=ep)) for ep in (2, 4)] == [None, "too many ranks"]


@pytest.mark.parametrize("phase", Phase)
def test_a_fault_strikes_in_its_phase_and_in_no_other(monkeypatch, phase):
    slept = []
    monkeypatch.setattr(faulty, "time", SimpleNamespace(sleep=slept.append))
    before = list(Phase)[: list(Phase).index(phase)]
    for last in before:
        walk(f"sleep:seconds=0.4,phase={phase}", last)
    assert slept == []
    walk(f"sleep:seconds=0.4,phase={phase}", Phase.RECHECK)
    assert slept == [0.4]


def test_raise_raises_an_exception_of_its_own_and_names_the_fault():
    with pytest.raises(InjectedFault, match="raise:rank=1,phase=timing"):
        walk("raise")


def test_oom_is_the_exception_of_the_gpus_allocator():
    with pytest.raises(torch.OutOfMemoryError, match="injected: oom"):
        walk("oom")


def test_memory_is_taken_until_the_allocator_refuses(monkeypatch):
    monkeypatch.setattr(faulty.Path, "write_text", lambda *_: None)
    monkeypatch.setattr(faulty, "BITE_BYTES", 2**60)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        walk("memory")


def test_unsupported_is_said_with_the_fault():
    backend = with_faults(Healthy, [parse_fault("unsupported")], CPU, lambda: "support")
    assert backend.unsupported(make_case()) == "injected: unsupported:rank=1,phase=support"


@pytest.mark.parametrize(("kind", "wrong"), [("nan", torch.full((3,), torch.nan)), ("row", -X_TD[2])])
def test_one_row_of_y_is_spoilt_and_y_stays_differentiable(kind, wrong):
    x_TD, right = X_TD.clone().requires_grad_(), [0, 1, 3]
    y_TD = walk(kind, Phase.CHECK, x_TD)
    assert torch.equal(y_TD[right], X_TD[right])
    torch.testing.assert_close(y_TD[2], wrong, equal_nan=True)
    y_TD[right].sum().backward()
    assert x_TD.grad is not None
    assert torch.equal(walk(kind, Phase.TIMING), X_TD)


def test_garbage_goes_to_both_outputs_as_much_as_asked_and_is_no_utf8(capfdbinary):
    walk("garbage:megabytes=2")
    for printed in capfdbinary.readouterr():
        assert printed.startswith(GARBAGE)
        assert len(printed) == pytest.approx(2 * 2**20, rel=0.01)
    with pytest.raises(UnicodeDecodeError):
        GARBAGE.decode()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("exit", lambda status: os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7),
        ("exit:status=0", lambda status: os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0),
        ("kill", lambda status: os.WTERMSIG(status) == signal.SIGKILL),
        ("segfault", lambda status: os.WTERMSIG(status) == signal.SIGSEGV and not os.WCOREDUMP(status)),
        ("stop", lambda status: os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_ends_as_its_fault_says_and_names_it_in_its_log(text, meant, capfd):
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        walk(text)
        os._exit(99)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert meant(status)
    assert f"injected: {parse_fault(text)}" in capfd.readouterr().err
