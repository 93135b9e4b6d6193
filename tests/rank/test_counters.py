"""Counters of a GPU that has them, lacks them, or refuses; and which source a case's traffic is taken from."""

import sys

import pytest
import torch
from tests.rank.fake_nvml import FakeNvml
from tests.reduce.build import MEASURE, SHAPE, make_case, make_traces, make_window

from moebench.cases.work import logical_tx_bytes
from moebench.rank import counters, timing
from moebench.rank.counters import TrafficSource, choose_source, nvlink_saw_all, traffic_source
from moebench.rank.counters_infiniband import infiniband_bytes
from moebench.rank.counters_nvml import (
    GpuAddress,
    NvlinkCounter,
    NvmlRefused,
    active_links,
    field_values,
    find_gpu,
    load_nvml,
)
from moebench.rank.exchange import Exchange
from moebench.reduce.row import case_row

FIRST = GpuAddress("aaaa", "00000000:3B:00.0")


def linked(**changes):
    nvml = FakeNvml(**changes)
    nvml.set_traffic(10, 7)
    return nvml


def test_kib_of_all_links_become_bytes():
    nvml = linked(links=(1, 1, 1))
    counter = NvlinkCounter(nvml, "first")
    assert counter.links == [0, 1, 2]
    assert counter.read() == (10240, 7168)
    assert set(nvml.asked[-2:]) == {(138, 0xFFFFFFFF), (139, 0xFFFFFFFF)}


def test_links_are_asked_for_and_only_those_that_are_up_count():
    assert active_links(FakeNvml(links=(0, 1, None, 1)), "first") == [1, 3]
    assert active_links(FakeNvml(fields={(91, 0): (3, 1, 18)}), "first") == []


def test_each_link_is_read_by_its_own_scope():
    nvml = linked(links=(1, 0, 1))
    nvml.set_traffic(4, 3, scope=0)
    nvml.set_traffic(6, 4, scope=2)
    assert NvlinkCounter(nvml, "first").read_links() == [(4096, 3072), (6144, 4096)]


def test_links_that_are_not_told_apart_cost_only_their_figures():
    assert NvlinkCounter(linked(), "first").read_links() is None


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        (FakeNvml(links=(0, 0)), "no NVLink of this GPU is up"),
        (FakeNvml(links=()), "no NVLink of this GPU is up"),
        (FakeNvml(links=(1,)), "field 138, scope 0xffffffff: NVML error 3"),
        (FakeNvml(links=(1,), fields={(138, 0xFFFFFFFF): (4, 3, 0)}), "NVML error 4"),
        (linked(mig=1), "divided by MIG"),
        (linked(refuses=["nvmlDeviceGetFieldValues"]), "no NVLink of this GPU is up"),
    ],
)
def test_a_gpu_without_usable_counters_says_why(nvml, why):
    with pytest.raises(NvmlRefused, match=why):
        NvlinkCounter(nvml, "first")


def test_a_counter_that_fails_later_answers_none():
    nvml = linked()
    counter = NvlinkCounter(nvml, "first")
    nvml.fields[139, 0xFFFFFFFF] = (999, 3, 0)
    assert counter.read() is None


def test_values_come_from_the_member_that_their_type_names():
    nvml = FakeNvml(fields={(1, 0): (0, 1, 5), (2, 0): (0, 3, 2**40)})
    assert field_values(nvml, "first", [(1, 0), (2, 0)]) == [5, 2**40]


def test_a_gpu_is_found_by_uuid_whatever_its_index_then_by_bus():
    nvml = FakeNvml()
    assert find_gpu(nvml, GpuAddress("bbbb", "00000000:3B:00.0")) == "second"
    assert find_gpu(nvml, GpuAddress("part-of-a-gpu", "00000000:AF:00.0")) == "second"
    assert find_gpu(nvml, GpuAddress(None, "00000000:3B:00.0")) == "first"
    with pytest.raises(NvmlRefused, match="Not Found"):
        find_gpu(nvml, GpuAddress("cccc", "00000000:00:00.0"))


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, "nvidia-ml-py is not installed"),
        (FakeNvml(refuses=["nvmlInit"]), "Not Supported"),
    ],
)
def test_without_package_or_driver_nvml_says_what_is_missing(monkeypatch, module, why):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    load_nvml.cache_clear()
    with pytest.raises(NvmlRefused, match=why):
        load_nvml()


def test_nvml_is_never_imported_with_torch_in_the_sampler():
    """The sampler's process starts in a fraction of the time, and holds no CUDA context."""
    import subprocess

    program = "import sys, moebench.rank.sampler_process; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


class Log:
    """A step, a barrier and a counter that note when they are called."""

    nvlink = property(lambda self: self)

    def __init__(self, monkeypatch, readings):
        self.calls, self.readings = [], iter(readings)
        self.case = make_case("torch", 1)
        monkeypatch.setattr(timing.dist, "barrier", lambda: self.calls.append("barrier"))

    def read(self):
        self.calls.append("read")
        return next(self.readings)

    def forward(self):
        self.calls.append("forward")

    def backward(self, y_TD): ...
    def clear_gradients(self): ...


def test_counters_are_read_before_ranks_meet_and_after_the_last_iteration(monkeypatch):
    log = Log(monkeypatch, [(100, 10), (350, 70)])
    window = timing.time_window(log, 2, torch.device("cpu"), Exchange(0, 1), log)
    assert log.calls == ["read", "barrier", "forward", "forward", "read"]
    assert (window.nvlink_tx_bytes, window.nvlink_rx_bytes) == (250, 60)
    assert window.begun_ns < window.ended_ns


@pytest.mark.parametrize("readings", [[None, (1, 1)], [(1, 1), None], [(100, 10), (99, 20)], [(10, 100), (20, 99)]])
def test_a_counter_that_failed_or_was_set_back_gives_no_bytes(monkeypatch, readings):
    log = Log(monkeypatch, readings)
    window = timing.time_window(log, 1, torch.device("cpu"), Exchange(0, 1), log)
    assert (window.nvlink_tx_bytes, window.nvlink_rx_bytes) == (None, None)


def test_a_row_takes_its_rates_from_the_source_of_its_traces():
    case = make_case()
    windows = [window(1_000_000, 2_000_000, 3_000_000)] * 2

    traces = [trace.model_copy(update={"windows": windows}) for trace in make_traces(case)]

    def row(source):
        changed = [trace.model_copy(update={"traffic_source": source}) for trace in traces]
        return case_row(case, changed, SHAPE, MEASURE)

    assert (row("transport").meanTXGBps, row("transport").meanRXGBps) == (1.0, 1.0)
    assert (row("nvlink").meanTXGBps, row("nvlink").meanRXGBps) == (2.0, 3.0)
    assert row("logical").meanTXGBps == pytest.approx(logical_tx_bytes(case) / 1.0 / 1e6)


def test_infiniband_counts_words_of_four_bytes_by_port(tmp_path):
    counters_of_port = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    counters_of_port.mkdir(parents=True)
    (counters_of_port / "port_xmit_data").write_text("100\n")
    (counters_of_port / "port_rcv_data").write_text("25\n")
    (tmp_path / "mlx5_1" / "ports" / "1" / "counters").mkdir(parents=True)
    assert infiniband_bytes(tmp_path) == {"mlx5_0/1": (400, 100)}
    assert infiniband_bytes(tmp_path / "nothing") == {}


def window(ledger, tx=None, rx=None):
    """`ledger` bytes each way by the collectives."""
    made = make_window([1.0], tx_bytes=ledger).model_copy(update={"rx_bytes": ledger})
    return made.model_copy(update={"nvlink_tx_bytes": tx, "nvlink_rx_bytes": rx})


@pytest.mark.parametrize(
    ("windows", "saw"),
    [
        ([window(1000, 1000, 1001)], True),
        ([window(1000, 900, 900)], True),
        ([window(1000, 899, 899)], False),
        ([window(1000, 1000, 1000), window(1000)], False),
        ([window(0, 0, 0)], False),
        ([window(0, 500, 500)], True),
        ([window(1000)], False),
    ],
)
def test_nvlink_stands_for_the_traffic_only_if_it_carried_nine_tenths_of_it(windows, saw):
    assert nvlink_saw_all(windows) is saw


def test_without_nvlink_the_ledger_counts_and_without_a_ledger_only_the_formula_is_left():
    assert choose_source(nvlink_saw_all=True, ledger_used=False) is TrafficSource.NVLINK
    assert choose_source(nvlink_saw_all=False, ledger_used=True) is TrafficSource.TRANSPORT
    assert choose_source(nvlink_saw_all=False, ledger_used=False) is TrafficSource.LOGICAL


@pytest.mark.parametrize(
    ("mine", "peer_is_blind", "source"),
    [
        (window(1000, 1000, 1000), 0, TrafficSource.NVLINK),
        (window(1000, 1000, 1000), 1, TrafficSource.TRANSPORT),
        (window(1000), 0, TrafficSource.TRANSPORT),
    ],
)
def test_a_rank_whose_counters_fail_decides_for_all(monkeypatch, mine, peer_is_blind, source):
    def reduce(flags, _):
        flags[0] = max(int(flags[0]), peer_is_blind)

    monkeypatch.setattr(counters.dist, "all_reduce", reduce)
    assert traffic_source([mine], 2, torch.device("cpu")) is source


def test_one_rank_has_no_traffic_to_measure():
    assert traffic_source([window(0, 1000, 1000)], 1, torch.device("cpu")) is TrafficSource.TRANSPORT
