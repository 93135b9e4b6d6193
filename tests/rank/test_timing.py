"""Windows of iterations on a clock that the test winds."""

import gc
from types import SimpleNamespace

import pytest
import torch

from moebench.cases.case import Measure
from moebench.rank import clock, timing
from moebench.rank.exchange import Exchange

CPU = torch.device("cpu")


class Wound:
    """A time that moves only when work is done."""

    def __init__(self, monkeypatch):
        self.ns = 5_000_000
        monkeypatch.setattr(clock.time, "perf_counter_ns", lambda: self.ns)

    def work(self, ms):
        self.ns += int(ms * 1e6)


class Steps:
    """A step that takes 2, 3, ... ms forward and 10 ms backward, clears in 100 ms, and sends bytes."""

    def __init__(self, time, exchange, training=True):
        self.time, self.exchange = time, exchange
        self.case = SimpleNamespace(training=training, measure=Measure())
        self.forwards, self.collecting = 0, []

    def forward(self):
        self.time.work(2 + self.forwards)
        self.forwards += 1
        self.collecting.append(gc.isenabled())
        self.exchange.ledger.tx_bytes["dispatch"] += 100
        self.exchange.ledger.rx_bytes["dispatch"] += 7

    def backward(self, y_TD):
        self.time.work(10 if self.case.training else 0)

    def clear_gradients(self):
        self.time.work(100)


@pytest.fixture
def time(monkeypatch):
    monkeypatch.setattr(timing.dist, "barrier", lambda: None)
    return Wound(monkeypatch)


def test_three_events_of_one_iteration_give_forward_backward_and_their_sum(time):
    exchange = Exchange(0, 1)
    window = timing.time_window(Steps(time, exchange), 3, CPU, exchange)
    assert window.forward_ms == [2, 3, 4]
    assert window.backward_ms == [10, 10, 10]
    assert window.iteration_ms == [12, 13, 14]


def test_clearing_gradients_is_neither_in_the_iterations_nor_in_the_seconds_of_rates(time):
    exchange = Exchange(0, 1)
    window = timing.time_window(Steps(time, exchange), 3, CPU, exchange)
    assert window.seconds == pytest.approx((12 + 13 + 14) / 1e3)


def test_inference_has_no_backward_time(time):
    exchange = Exchange(0, 1)
    window = timing.time_window(Steps(time, exchange, training=False), 2, CPU, exchange)
    assert window.backward_ms is None
    assert window.iteration_ms == window.forward_ms == [2, 3]


def test_bytes_of_a_window_are_those_sent_in_it(time):
    exchange = Exchange(0, 1)
    step = Steps(time, exchange)
    timing.warm_up(step, 5)
    window = timing.time_window(step, 3, CPU, exchange)
    assert (window.tx_bytes, window.rx_bytes) == (300, 21)


def test_garbage_is_not_collected_inside_a_window(time):
    exchange = Exchange(0, 1)
    step = Steps(time, exchange)
    timing.time_window(step, 2, CPU, exchange)
    assert step.collecting == [False, False]
    assert gc.isenabled()


def test_ranks_meet_before_a_window_and_never_inside_it(time, monkeypatch):
    exchange, met = Exchange(0, 1), []
    step = Steps(time, exchange)
    monkeypatch.setattr(timing.dist, "barrier", lambda: met.append(step.forwards))
    timing.time_window(step, 4, CPU, exchange)
    assert met == [0]


def test_garbage_is_collected_before_the_ranks_meet_so_that_they_begin_together(time, monkeypatch):
    exchange, seen = Exchange(0, 1), []
    monkeypatch.setattr(timing.gc, "collect", lambda: seen.append("collected"))
    monkeypatch.setattr(timing.dist, "barrier", lambda: seen.append("met"))
    timing.time_window(Steps(time, exchange), 1, CPU, exchange)
    assert seen == ["collected", "met"]


def test_host_clock_gives_ms_since_its_first_mark(monkeypatch):
    wound = Wound(monkeypatch)
    marks = clock.make_clock(CPU, 3)
    for i, ms in enumerate((0, 1.5, 2.5)):
        wound.work(ms)
        marks.mark(i)
    assert marks.finish() == [0, 1.5, 4]


def warming(time, monkeypatch, iteration_ms, slower_ranks=(), **measure):
    """settle() of a step whose i-th iteration takes iteration_ms(i); `slower_ranks` say no to so many questions."""
    answers = list(slower_ranks)

    def reduce(mine, op):
        if answers:
            mine *= answers.pop(0)

    monkeypatch.setattr(timing.dist, "all_reduce", reduce)
    done = []

    def forward():
        time.work(iteration_ms(len(done)))
        done.append(None)

    case = SimpleNamespace(training=False, measure=Measure(**measure))
    step = SimpleNamespace(case=case, forward=forward, backward=lambda y: None, clear_gradients=lambda: None)
    ended = timing.settle(step, CPU)
    assert ended.warmups == len(done)
    return ended.warmups, ended.settled


def test_warm_up_goes_on_until_iteration_times_no_longer_drift(time, monkeypatch):
    assert warming(time, monkeypatch, lambda i: 5, warmups=3) == (13, True)
    assert warming(time, monkeypatch, lambda i: 5 + max(0, 33 - i), warmups=3) == (43, True)


def test_warm_up_is_bounded_and_says_that_it_did_not_settle(time, monkeypatch):
    assert warming(time, monkeypatch, lambda i: 5 + i, warmups=3, max_warmups=28) == (28, False)


def test_no_warm_up_beyond_the_count_is_measured_where_none_is_allowed(time, monkeypatch):
    assert warming(time, monkeypatch, lambda i: 5 + i, warmups=3, max_warmups=3) == (3, None)


def test_ranks_warm_up_until_the_last_of_them_has_settled(time, monkeypatch):
    assert warming(time, monkeypatch, lambda i: 5, slower_ranks=[0, 0], warmups=0) == (30, True)


@pytest.fixture
def on_gpu(time, monkeypatch):
    """The wound time in place of a GPU's events; how many were made, and which were recorded."""
    made, recorded = [], []

    class Events(clock.HostClock):
        def __init__(self, marks):
            made.append(marks)
            super().__init__(marks)

        def mark(self, index):
            recorded.append(index)
            super().mark(index)

    monkeypatch.setattr(clock, "CudaClock", Events)
    monkeypatch.setattr(timing, "_flush_buffer", lambda device: SimpleNamespace(zero_=lambda: time.work(1000)))
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(timing.torch.cuda, "_sleep", lambda cycles: None)
    return SimpleNamespace(made=made, recorded=recorded)


def window_on_gpu(time, training, flush=False):
    steps = Steps(time, Exchange(0, 1), training)
    steps.case.measure = Measure(l2_flush=flush)
    if not training:
        steps.clear_gradients = lambda: None
    return timing.time_window(steps, 3, torch.device("cuda"), Exchange(0, 1))


@pytest.mark.parametrize(("training", "flush", "events"), [(False, False, 4), (False, True, 6), (True, False, 9)])
def test_an_iteration_has_no_more_events_than_it_needs(time, on_gpu, training, flush, events):
    """Each costs a GPU more than a microsecond."""
    window_on_gpu(time, training, flush)
    assert on_gpu.made == [events]
    assert on_gpu.recorded == list(range(events))


def test_an_event_may_end_one_iteration_and_begin_the_next_where_nothing_is_between(time, on_gpu):
    assert window_on_gpu(time, training=False).forward_ms == [2, 3, 4]


@pytest.mark.parametrize("training", [False, True])
def test_work_between_iterations_is_in_none_of_them(time, on_gpu, training):
    window = window_on_gpu(time, training, flush=True)
    assert window.forward_ms == [2, 3, 4]
    assert window.iteration_ms == ([12, 13, 14] if training else [2, 3, 4])
