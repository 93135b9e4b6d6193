"""The sampler's process, what goes wrong with it, and what its samples say of the windows."""

import os
import sys
import time
from threading import Thread

import pytest
from tests.rank.fake_nvml import FakeNvml
from tests.reduce.build import make_window

from moebench.rank import sampler as sampler_module
from moebench.rank.sampler import Sampler, summary
from moebench.rank.sampler_process import Sample, serve, take

PROGRAM = """
import sys
from tests.rank.fake_nvml import FakeNvml
from moebench.rank.sampler_process import serve
serve(FakeNvml(), "first", sys.stdin.fileno(), sys.stdout)
"""


def sample(at_ns, **changes):
    fields = {"throttle_reasons": 0, "sm_mhz": 1980, "memory_mhz": 3201, "power_w": 100.0, "temperature_c": 40}
    return Sample(at_ns=at_ns, **{**fields, **changes})


def window(begun_ns, ended_ns):
    return make_window([1.0]).model_copy(update={"begun_ns": begun_ns, "ended_ns": ended_ns})


@pytest.fixture
def running():
    started = []

    def start(program):
        started.append(Sampler([sys.executable, "-c", program]))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_one_sample_has_every_sensor_that_answers():
    got = take(FakeNvml(refuses=["nvmlDeviceGetTemperature"]), "first")
    assert (got.throttle_reasons, got.sm_mhz, got.memory_mhz) == (0x4, 1980, 3201)
    assert (got.power_w, got.temperature_c) == (123.456, None)


def test_older_bindings_call_event_reasons_throttle_reasons():
    assert take(FakeNvml(lacks=["nvmlDeviceGetCurrentClocksEventReasons"]), "first").throttle_reasons == 0x24


def test_a_process_samples_between_begin_and_end_and_again_for_the_next_case(running):
    one = running(PROGRAM)
    for _ in range(2):
        begun_ns = time.monotonic_ns()
        one.begin()
        time.sleep(0.1)
        samples = one.end()
        assert len(samples) >= 1
        assert all(begun_ns < s.at_ns < time.monotonic_ns() for s in samples)
        assert samples[-1].power_w == 123.456


def test_between_cases_it_rests():
    commands, write = os.pipe()
    nvml = FakeNvml()
    thread = Thread(target=serve, args=(nvml, "first", commands, None))
    thread.start()
    time.sleep(0.1)
    os.close(write)
    thread.join(5)
    assert not thread.is_alive()
    os.close(commands)
    assert nvml.asked == []


@pytest.mark.parametrize(
    "program", ["raise SystemExit('no NVML')", "import time; time.sleep(60)", "print('no JSON', flush=True); input()"]
)
def test_a_sampler_that_dies_hangs_or_babbles_costs_figures_and_no_case(running, monkeypatch, program):
    monkeypatch.setattr(sampler_module, "ANSWER_S", 1.0)
    one = running(program)
    one.begin()
    assert one.end() is None
    one.begin()
    assert one.end() is None


def test_a_program_that_cannot_be_started_costs_no_case():
    one = Sampler(["/no/such/python"])
    one.begin()
    assert one.end() is None
    one.close()


def test_only_samples_inside_windows_count_and_reasons_are_or_ed():
    samples = [
        sample(5, throttle_reasons=0x40, sm_mhz=345),
        sample(15, throttle_reasons=0x4, sm_mhz=1400, power_w=600.0),
        sample(25, throttle_reasons=0x80, sm_mhz=300),
        sample(35, throttle_reasons=0x8, sm_mhz=1500, power_w=640.0),
        sample(38, throttle_reasons=0x0, sm_mhz=1900, power_w=None),
    ]
    found = summary(samples, [window(10, 20), window(30, 40)])
    assert (found["samples"], found["throttle_reasons"]) == (3, 0xC)
    assert found["sm_clock_mhz"] == {"min": 1400, "median": 1500, "max": 1900}
    assert found["power_w"] == {"min": 600.0, "median": 620.0, "max": 640.0}


def test_windows_shorter_than_a_period_take_the_sample_right_after_them():
    found = summary([sample(5, throttle_reasons=1), sample(50, throttle_reasons=4)], [window(10, 20)])
    assert (found["samples"], found["throttle_reasons"]) == (0, 4)


def test_what_a_gpu_does_not_say_is_left_out():
    found = summary([sample(15, throttle_reasons=None, sm_mhz=None)], [window(10, 20)])
    assert {"throttle_reasons", "sm_clock_mhz"}.isdisjoint(found)
    assert summary([], [window(10, 20)]) == {"samples": 0}
