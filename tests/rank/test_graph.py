"""What a replayed iteration counts and shows. That capture is right is checked on GPUs, by every case that uses it."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from tests.reduce.build import make_case

from moebench.backends.dist_moe.portable import DistMoeBackend
from moebench.backends.mok.portable import MokBackend
from moebench.backends.protocol import Backend
from moebench.backends.torch_ep import TorchBackend
from moebench.cases.case import Measure
from moebench.rank.exchange import Ledger
from moebench.rank.graph import GraphStep, Part
from moebench.rank.trace import estimator


class Replayed:
    def __init__(self):
        self.times = 0

    def replay(self):
        self.times += 1

    def reset(self):
        self.times = None


@pytest.fixture
def step():
    ledger, y_TD = Ledger(), torch.ones(2, 3)
    forward = Part(Replayed(), Counter({"dispatch": 100}), Counter({"dispatch": 70}))
    backward = Part(Replayed(), Counter({"backward combine": 11}), Counter())
    seen = [(torch.zeros(2, 3), y_TD)]
    return GraphStep(SimpleNamespace(training=True), None, None, ledger, forward, backward, y_TD, seen)


def test_each_replay_is_counted_as_what_was_captured(step):
    for _ in range(3):
        step.backward(step.forward())
        step.clear_gradients()
    assert step.ledger.tx_bytes == {"dispatch": 300, "backward combine": 33}
    assert step.ledger.rx_bytes == {"dispatch": 210}
    assert (step.forward_part.graph.times, step.backward_part.graph.times) == (3, 3)


def test_the_check_sees_the_layers_of_the_graph(step):
    layers = []
    step.forward(lambda l, h_TD, y_TD: layers.append((l, h_TD, y_TD)))
    assert layers == [(0, *step.seen[0])]


def test_released_graphs_are_reset(step):
    step.release()
    assert step.forward_part.graph.times is step.backward_part.graph.times is None


def test_backends_say_what_can_be_captured_and_third_parties_cannot_unless_they_say_so():
    for backend, name in ((DistMoeBackend, "dist_moe"), (MokBackend, "mok")):
        assert backend.why_no_cuda_graph(make_case(name, 2)) is None
    assert TorchBackend.why_no_cuda_graph(make_case("torch", 1)) is None
    assert "on the host" in TorchBackend.why_no_cuda_graph(make_case("torch", 2))

    class Mine(Backend):
        name = "mine"

        def layer(self, l, x_TD, ids_TK, scores_TK): ...

    assert "does not say" in Mine.why_no_cuda_graph(make_case("torch", 1))


def test_graphs_and_flushes_are_estimators_of_their_own():
    ways = [Measure(), Measure(cuda_graph=True), Measure(l2_flush=True), Measure(paired=True, windows=2)]
    assert len({estimator(measure, on_gpu=True) for measure in ways}) == 4
    assert estimator(Measure(), on_gpu=True) == "slowest-rank-window-mean"
    assert estimator(Measure(cuda_graph=True), on_gpu=False) == "slowest-rank-window-mean"
