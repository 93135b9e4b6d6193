"""Windows of several cases that alternate, in one process."""

import pytest
import torch
from tests.reduce.build import make_case

from moebench.backends.dist_moe.portable import DistMoeBackend
from moebench.backends.mok.portable import MokBackend
from moebench.backends.torch_ep import TorchBackend
from moebench.cases.case import Measure, Mode
from moebench.rank import execution, paired
from moebench.rank.execution import Execution, StopAsked
from moebench.rank.paired import PairedExecution, Turn
from moebench.rank.progress import Progress
from moebench.status import Reason, Status

CPU = torch.device("cpu")
MEASURE = Measure(paired=True, windows=6, iterations=2, warmups=1, max_warmups=1)
CLASSES = {"torch": TorchBackend, "dist_moe": DistMoeBackend, "mok": MokBackend}


@pytest.fixture
def executed(monkeypatch, tmp_path):
    """Traces of a group at ep 1, and whose window came when: its own one is of the twin where `twin` says so."""
    monkeypatch.setattr(execution, "environment", lambda device: {})
    monkeypatch.setattr("moebench.rank.timing.dist.barrier", lambda: None)
    monkeypatch.setattr("moebench.rank.timing.gc.collect", lambda: None)  # 0.1 s each in a process full of tests
    monkeypatch.setattr(execution, "agree", lambda mine, *_: [mine])
    resident, most = set(), []
    order = []

    def run(backends=("dist_moe", "mok", "torch"), together=True, classes=None, stop=False):
        monkeypatch.setattr(execution, "backend_of", lambda case: watched((classes or CLASSES)[case.backend]))
        cases = [make_case(name, 1, mode=Mode.TRAINING, measure=MEASURE) for name in backends]
        progress = Progress(tmp_path / "events.jsonl")
        all_ = [Execution(case, 1, 0, CPU, progress, lambda: stop) for case in cases]
        for one in all_:
            window = one.window
            monkeypatch.setattr(one, "window", lambda step, one=one, window=window: (note(one), window(step))[1])
        group = PairedExecution(all_, "run/001/1", together=together)
        try:
            group.run()
        finally:
            run.order, run.most, run.current = order, max(most, default=0), group.current
        return [one.trace for one in all_]

    def note(one):
        order.append(one.case.backend)
        most.append(len(resident))

    def watched(backend_class):
        class Watched(backend_class):
            def __init__(self, setup):
                super().__init__(setup)
                resident.add(self)

            def close(self):
                resident.discard(self)
                super().close()

        return Watched

    run.resident = resident
    return run


@pytest.mark.parametrize("together", [True, False])
def test_windows_alternate_in_mirror_image_and_each_case_is_checked_before_and_after(executed, together):
    traces = executed(together=together)
    d, m, t = "dist_moe", "mok", "torch"
    assert executed.order == [d, d, m, t, t, m, d, d, d, m, t, d, d, t, m, d, m, t, d, d, d, d, t, m]
    for trace in traces:
        assert (trace.status, trace.phase) == (Status.ACCEPTED, "done")
        assert {check.when for check in trace.checks} == {"before", "after"}
        assert len(trace.windows) == 6
        assert trace.alternation.model_dump() == {"group": "run/001/1", "blocks": 3, "together": together}
        assert trace.tx_bytes_by_kind is not None
        assert trace.memory_source in ("rss", None)
    assert [len(trace.aa_windows) for trace in traces] == [6, 0, 0]
    assert executed.most == (3 if together else 1)
    assert executed.resident == set()


def test_all_cases_of_a_group_get_the_same_inputs_and_weights(executed):
    """They are held once, and do the same work by construction."""
    seen = []

    class Sees(TorchBackend):
        def __init__(self, setup):
            seen.append([weights.w2_eDF.data_ptr() for weights in setup.weights])
            super().__init__(setup)

    executed(classes=dict.fromkeys(CLASSES, Sees))
    assert len(seen) == 6
    assert len({tuple(pointers) for pointers in seen}) == 1


def wrong(sign=-1):
    class Wrong(TorchBackend):
        def layer(self, l, x_TD, ids_TK, scores_TK):
            return sign * super().layer(l, x_TD, ids_TK, scores_TK)

    return Wrong


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("bad", ["dist_moe", "mok"])
def test_a_wrong_case_ends_alone_and_the_others_go_on_with_an_a_a_pair(executed, together, bad):
    traces = {t.case.backend: t for t in executed(together=together, classes=CLASSES | {bad: wrong()})}
    assert (traces[bad].status, traces[bad].reason, traces[bad].windows) == (Status.REJECTED, Reason.INCORRECT, [])
    good = [trace for name, trace in traces.items() if name != bad]
    assert [(trace.status, len(trace.windows)) for trace in good] == [(Status.ACCEPTED, 6)] * 2
    assert [len(trace.aa_windows) for trace in good] == [6, 0]


def test_a_case_that_cannot_be_set_up_beside_the_others_ends_alone(executed):
    class Second(TorchBackend):
        built = 0

        def __init__(self, setup):
            type(self).built += 1
            if self.built == 2:
                raise torch.OutOfMemoryError("no room for two")
            super().__init__(setup)

    traces = executed(classes=CLASSES | {"mok": Second})
    assert [trace.status for trace in traces] == [Status.ACCEPTED, Status.FAILED, Status.ACCEPTED]
    assert traces[1].reason is Reason.OUT_OF_MEMORY
    assert executed.resident == set()


def test_a_failure_that_ranks_cannot_agree_on_is_that_of_the_case_in_turn(executed):
    class Breaks(TorchBackend):
        calls = 0

        def layer(self, l, x_TD, ids_TK, scores_TK):
            type(self).calls += 1
            if self.calls == 12:
                raise IndexError("row 7 of 5")
            return super().layer(l, x_TD, ids_TK, scores_TK)

    with pytest.raises(IndexError):
        executed(classes=CLASSES | {"mok": Breaks})
    assert executed.current.case.backend == "mok"
    assert executed.current.trace.phase == "timing"
    assert executed.resident == set()


def test_a_sweep_that_stops_begins_no_group(executed):
    with pytest.raises(StopAsked):
        executed(stop=True)
    assert executed.order == []


def test_two_cases_alternate_as_abba_and_baab():
    a, b = Turn("a", []), Turn("b", [])
    assert "".join(turn.execution for turn in paired._in_blocks([a, b], 3)) == "abbabaababba"


@pytest.mark.parametrize("cases", [1, 2, 3, 5])
def test_whatever_changes_steadily_during_a_block_cancels_between_any_two_turns(cases):
    turns = [Turn(str(i), []) for i in range(cases)]
    order = paired._in_blocks(turns, 4)
    length = 2 * cases
    for block in range(4):
        begin = block * length
        places = {turn.execution: [] for turn in turns}
        for place, turn in enumerate(order[begin : begin + length]):
            places[turn.execution].append(place)
        assert {sum(two) for two in places.values()} == {length - 1}
