"""A backend of known time: what it waits for, in what order, and that it is right on one rank. On two ranks its
numerics pass in tests/launch/test_self_test.py."""

from types import SimpleNamespace

import pytest
import torch
from tests.reduce.build import make_case

from moebench.backends import spin, timers
from moebench.backends.pace import Pace
from moebench.backends.protocol import Setup, Stages
from moebench.backends.registry import backend_names, load_backend
from moebench.backends.spin import Spin
from moebench.cases.case import Category, Mode
from moebench.cases.expand import known_backends, resolve_backend
from moebench.errors import UsageError
from moebench.rank.check import check, first_failure
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.step import Step

CPU = torch.device("cpu")


class Impostor(load_backend("torch")):
    name = "spin"


def test_it_is_found_by_name_and_listed_nowhere():
    assert load_backend("spin") is Spin
    assert resolve_backend("spin")[0] == "spin"
    assert "spin" not in backend_names() + known_backends()


def test_its_variants_may_bear_its_name_and_no_other_class():
    assert load_backend("moebench.backends.spin:SlowerSpin").name == "spin"
    with pytest.raises(UsageError, match="choose another"):
        load_backend("tests.backends.test_spin:Impostor")


@pytest.mark.parametrize(
    ("pace", "forward_ms", "backward_ms"),
    [
        (Pace(), [[2, 2, 2], [2, 2, 2]], 4),
        (Pace(factor=1.05), [[2.1, 2.1, 2.1], [2.1, 2.1, 2.1]], 4.2),
        (Pace(skew_ms=0.5), [[2, 2, 2], [2.5, 2.5, 2.5]], 4),
        (Pace(drift_ms=0.1), [[2, 2.1, 2.2], [2, 2.1, 2.2]], 4),
        (Pace(outlier_every=2, outlier_ms=1), [[3, 2, 3], [3, 2, 3]], 4),
    ],
)
def test_time_is_known_for_each_rank_and_iteration(pace, forward_ms, backward_ms):
    case = make_case()
    assert case.shape.F == 16
    asked = [[pace.forward_ms(case, rank, iteration) for iteration in range(3)] for rank in range(2)]
    assert asked == [pytest.approx(rank) for rank in forward_ms]
    assert pace.backward_ms(case) == pytest.approx(backward_ms)


class FakeTime:
    """A clock that sleep moves, and each look at it by 100 ns. Sleepers wake up so many ns late."""

    def __init__(self, late_ns=0):
        self.now_ns, self.late_ns, self.slept_ns = 10**9, late_ns, []

    def perf_counter_ns(self):
        self.now_ns += 100
        return self.now_ns

    def sleep(self, seconds):
        self.slept_ns.append(round(seconds * 1e9))
        self.now_ns += self.slept_ns[-1] + self.late_ns


@pytest.fixture
def clock(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(timers, "time", fake)
    return fake


def test_the_host_waits_until_the_time_since_the_start_is_up_and_sleeps_but_for_the_last_of_it(clock):
    timer = timers.HostTimer()
    timer.start()
    began_ns = clock.now_ns
    clock.now_ns += 7_000_000  # of work
    timer.wait(30)
    assert 30_000_000 <= clock.now_ns - began_ns <= 30_000_200
    assert clock.slept_ns == [pytest.approx(23_000_000 - timers.AWAKE_NS, abs=200)]


def test_a_wait_counts_from_the_end_of_the_last_one_until_there_is_a_new_start(clock):
    timer = timers.HostTimer()
    timer.start()
    timer.wait(0.5)
    clock.now_ns += 200_000
    timer.wait(0.5)
    clock.now_ns += 1_000_000
    timer.start()
    timer.wait(0.5)
    assert timer.took_ms() == [pytest.approx(0.5, abs=3e-4)] * 3


def test_it_is_noted_how_long_a_wait_that_came_too_late_really_took(clock):
    timer, clock.late_ns = timers.HostTimer(), 19_000_000
    timer.start()
    clock.now_ns += 5_000_000
    timer.wait(3)
    timer.wait(12)
    assert timer.took_ms() == [pytest.approx(5, abs=1e-3), pytest.approx(21, abs=1e-3)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_waits_by_its_own_clock_and_the_host_does_not():
    timer = timers.DeviceTimer(torch.device("cuda", 0))
    timer.start()
    timer.wait(1)
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    timer.start()
    timer.wait(200)
    timer.wait(3)
    end.record()
    assert not end.query()
    assert timer.took_ms()[1:] == [pytest.approx(200, abs=0.1), pytest.approx(3, abs=0.1)]
    assert begin.elapsed_time(end) == pytest.approx(203, rel=0.01)


def make_step(monkeypatch, timer, backend=Spin, rank=0, ranks=1, **changes):
    monkeypatch.setattr(spin, "make_timer", lambda device: timer)
    case = make_case("spin", ranks, **changes)
    ids_PTK = make_routing(case)
    inputs = make_inputs(case, rank, CPU, ids_PTK)
    setup = Setup(case, rank, CPU, Exchange(rank, ranks), inputs.weights, ids_PTK, Stages())
    return Step(case, backend(setup), inputs)


def recorder(events):
    return SimpleNamespace(start=lambda: events.append("start"), wait=events.append, took_ms=list)


def test_time_begins_with_the_first_layer_and_each_layer_waits_forward_and_then_backward(monkeypatch):
    events = []
    chained = {"category": Category.PACKING, "profile": "A", "layer_imbalances": (1.0, 1.0)}
    step = make_step(monkeypatch, recorder(events), mode=Mode.TRAINING, **chained)
    step.backward(step.forward())
    assert events == ["start", 2.0, 2.0, 4.0, 4.0]


def test_every_gradient_is_there_when_backward_begins_to_wait(monkeypatch):
    waits = []

    def wait(ms):
        w, work = step.inputs.weights[0], step.backend._experts[0]
        grads = (
            w.shared13_GD.grad,
            w.shared2_DF.grad,
            work.w13_eGD.grad,
            work.w2_eDF.grad,
            step.inputs.scores_TK[0].grad,
        )
        waits.append([grad is not None for grad in grads])

    step = make_step(monkeypatch, SimpleNamespace(start=lambda: None, wait=wait), mode=Mode.TRAINING)
    step.backward(step.forward())
    assert waits == [[False] * 5, [True] * 5]


@pytest.mark.parametrize(("rank", "ms"), [(0, 2.0), (1, 4.0)])
def test_ranks_take_their_own_time_without_a_word_to_each_other(monkeypatch, rank, ms):
    """There is no process group here, so that a collective would fail."""
    events = []
    make_step(monkeypatch, recorder(events), spin.SkewedSpin, rank, 2).forward()
    assert events == ["start", ms]


def test_drift_and_outliers_follow_the_iterations_since_set_up(monkeypatch):
    events = []

    class Both(Spin):
        pace = Pace(drift_ms=0.5, outlier_every=2, outlier_ms=10.0)

    step = make_step(monkeypatch, recorder(events), Both)
    for _ in range(4):
        step.forward()
    assert [event for event in events if event != "start"] == [12.0, 2.5, 13.0, 3.5]


def test_gradients_are_of_one_iteration_however_many_there_were(monkeypatch):
    step = make_step(monkeypatch, recorder([]), mode=Mode.TRAINING)
    for _ in range(3):
        step.backward(step.forward())
        step.clear_gradients()
    assert first_failure(check(step, Exchange(0, 1), "before")) is None
