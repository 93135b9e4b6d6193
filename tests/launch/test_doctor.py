"""Facts of odd machines, the collective test when it goes wrong, and what is made of it all."""

import subprocess
import sys
import time

import pytest
from tests.rank.fake_nvml import FakeNvml

from moebench.launch import doctor_collective, doctor_gpus
from moebench.launch.doctor import BackendState, Torch
from moebench.launch.doctor_collective import CollectiveTest, try_collectives
from moebench.launch.doctor_findings import findings
from moebench.launch.doctor_gpus import Gpu, Gpus, examine_gpus
from moebench.launch.doctor_host import Host, Limits, examine_host
from moebench.rank.counters_nvml import NvmlRefused

GIB = 2**30


def no_nvml():
    raise NvmlRefused("the Python package nvidia-ml-py is not installed")


def good_host(**changes):
    facts = {
        "name": "host",
        "system": "Linux",
        "processor": "CPU",
        "python": "3.11",
        "moebench": "0",
        "cores": 8,
        "load": 0.5,
        "available_bytes": 64 * GIB,
        "shared_memory_bytes": 32 * GIB,
        "folder": "/work",
        "folder_writable": True,
        "disk_free_bytes": 100 * GIB,
        "limits": Limits(open_files=65536),
        "loopback": "lo",
    }
    return Host(**facts | changes)


CPU_TORCH = Torch(version="2.13+cpu")
NO_GPUS = Gpus(source="none")
WORKS = CollectiveTest(ranks=2, device="cpu", collectives="gloo", passed=True, seconds=5.0)


def found(host=None, torch=CPU_TORCH, gpus=NO_GPUS, backends=(), collectives=WORKS):
    return findings(host or good_host(), torch, gpus, list(backends), collectives)


def only(found):
    (finding,) = found
    return finding.stops, finding.what, finding.remedy


def test_a_good_machine_has_no_findings():
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "stops", "what", "remedy"),
    [
        ({"shared_memory_bytes": 64 * 2**20}, False, "/dev/shm is 64 MiB", "--shm-size=8g"),
        ({"loopback": None}, True, "127.0.0.1", "ip link set lo up"),
        ({"folder_writable": False}, True, "/work cannot be written to", "a folder of yours"),
        ({"disk_free_bytes": 2**20}, True, "1 MiB of disk", "free 100 MiB"),
        ({"available_bytes": GIB // 2}, True, "512 MiB of memory", "more memory"),
        ({"limits": Limits(open_files=256)}, False, "256 open files", "ulimit -n 65536"),
        ({"limits": Limits(processes=100)}, False, "100 processes", "ulimit -u"),
        (
            {"limits": Limits(locked_memory_bytes=8 * 2**20), "infiniband": ["mlx5_0"]},
            False,
            "8 MiB can be locked",
            "ulimit -l unlimited",
        ),
        ({"load": 7.9}, False, "load 7.9 on 8 cores", "idle"),
    ],
)
def test_what_a_host_lacks_is_found_with_its_remedy(changes, stops, what, remedy):
    got = only(found(good_host(**changes)))
    assert got[0] is stops
    assert what in got[1]
    assert remedy in got[2]


def test_what_a_host_does_not_say_is_no_finding():
    unknown = dict.fromkeys(
        ("cores", "load", "available_bytes", "shared_memory_bytes", "disk_free_bytes", "limits"), None
    )
    assert found(good_host(**unknown)) == []


GPU = Gpu(index=0, name="H200", memory_bytes=100 * GIB, free_bytes=99 * GIB, throttle_reasons=0x4)
CUDA_TORCH = Torch(version="2.13", cuda="13.0", gpus=1)


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"mig": True}, "divided by MIG", "whole GPU"),
        ({"throttle_reasons": 0x44}, "NVML bits 0x40", "rejected"),
        ({"throttle_reasons": 0x2}, "set by hand", "-rac"),
        ({"power_limit_w": 500.0, "power_default_w": 700.0}, "capped at 500 W, its default is 700 W", "same cap"),
        ({"free_bytes": 50 * GIB}, "50.0 GiB of 100.0 GiB are free", "nvidia-smi"),
        ({"nvlinks_up": 18, "nvlink_counters": "NVML error 4"}, "cannot be read: NVML error 4", "transport"),
    ],
)
def test_what_ails_a_gpu_is_found_and_its_power_cap_under_load_is_not(changes, what, remedy):
    gpus = Gpus(source="nvml", gpus=[GPU])
    assert found(torch=CUDA_TORCH, gpus=gpus) == []
    ailing = Gpus(source="nvml", gpus=[GPU.model_copy(update=changes)])
    got = only(found(torch=CUDA_TORCH, gpus=ailing))
    assert (got[0], what in got[1], remedy in got[2]) == (False, True, True)


@pytest.mark.parametrize(
    ("torch", "what"),
    [
        (CPU_TORCH, "is a CPU build"),
        (Torch(version="2.13", cuda="13.0", gpus=0), "cannot use a GPU; the driver is 580"),
        (Torch(version=None, error="ImportError: libcudart"), "cannot be imported: ImportError: libcudart"),
    ],
)
def test_gpus_that_torch_cannot_use_stop(torch, what):
    got = only(found(torch=torch, gpus=Gpus(source="nvml", driver="580", gpus=[GPU])))
    assert got[0]
    assert what in got[1]


def test_without_nvidia_ml_py_gpus_are_measured_but_their_counters_are_missed():
    got = only(found(torch=CUDA_TORCH, gpus=Gpus(source="nvidia-smi", why_no_nvml="not installed", gpus=[GPU])))
    assert got == (
        False,
        "no NVLink counters, clocks or throttle reasons: not installed",
        "pip install 'moebench[gpu]'",
    )


def test_what_stops_comes_first_and_backends_stop_only_if_all_are_missing():
    broken = WORKS.model_copy(update={"passed": False, "error": "no answer"})
    both = found(good_host(load=8.0), collectives=broken)
    assert [finding.stops for finding in both] == [True, False]
    one, other = (BackendState(name="torch", implementation="portable", missing=why) for why in (None, "all"))
    assert found(backends=[one, other]) == []
    assert only(found(backends=[other]))[0]


def test_a_machine_without_proc_or_shared_memory_is_examined(tmp_path):
    host = examine_host(tmp_path)
    assert (host.shared_memory_bytes, host.infiniband) == (None, [])
    assert host.cores >= 1


def test_gpus_are_examined_by_nvml():
    nvml = FakeNvml(links=(1, 0), refuses=["nvmlDeviceGetTemperature"])
    nvml.set_traffic(1, 1)
    got = examine_gpus(lambda: nvml)
    assert (got.source, got.driver, got.cuda, len(got.gpus)) == ("nvml", "580.1", "13.0", 2)
    gpu = got.gpus[1]
    assert (gpu.uuid, gpu.nvlinks, gpu.nvlinks_up, gpu.nvlink_counters) == ("GPU-bbbb", 2, 1, None)
    assert (gpu.power_w, gpu.power_limit_w, gpu.power_default_w) == (123.456, 500, 700)
    assert (gpu.sm_clock_mhz, gpu.temperature_c, gpu.throttle_reasons) == (1980, None, 0x4)


def test_without_nvml_nvidia_smi_is_asked(monkeypatch):
    answer = "0, NVIDIA H200, GPU-aaaa, 580.1, 143771, 143000\n1, Old, GPU-bbbb, 580.1, [N/A], [N/A]\n"

    def smi(query, **_):
        return subprocess.CompletedProcess(query, 0, stdout=answer)

    monkeypatch.setattr(doctor_gpus.subprocess, "run", smi)
    got = examine_gpus(no_nvml)
    assert (got.source, got.driver) == ("nvidia-smi", "580.1")
    assert [gpu.memory_bytes for gpu in got.gpus] == [143771 * 2**20, None]


@pytest.mark.parametrize("answer", [None, "", "Failed to initialize NVML: Driver/library version mismatch\n"])
def test_a_machine_without_nvidia_smi_or_with_a_broken_one_has_no_gpus(monkeypatch, answer):
    def smi(query, **_):
        if answer is None:
            raise FileNotFoundError("nvidia-smi")
        return subprocess.CompletedProcess(query, 0, stdout=answer)

    monkeypatch.setattr(doctor_gpus.subprocess, "run", smi)
    got = examine_gpus(no_nvml)
    assert (got.source, got.gpus) == ("none", [])
    assert "not installed" in got.why_no_nvml


@pytest.fixture
def torchrun_is(monkeypatch):
    def become(program):
        monkeypatch.setattr(
            doctor_collective.torchrun, "command", lambda *given: [sys.executable, "-c", program, str(given[-1])]
        )

    return become


def test_a_torchrun_that_hangs_is_ended_at_the_deadline(torchrun_is, monkeypatch):
    monkeypatch.setattr(doctor_collective, "TERM_S", 0.3)
    torchrun_is("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)")
    begun = time.monotonic()
    test = try_collectives(0, deadline_s=0.5)
    assert time.monotonic() - begun < 10
    assert not test.passed
    assert "no answer within 0.5 s" in test.error


def test_a_torchrun_that_fails_says_its_last_words(torchrun_is):
    torchrun_is("raise SystemExit('no route to host')")
    test = try_collectives(0)
    assert not test.passed
    assert "exit status 1: no route to host" in test.error


def test_words_that_went_astray_fail_the_test(torchrun_is):
    torchrun_is(
        "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text("
        '\'{"wrong_words": 7, "latency_us": 1, "bandwidth_gbps": 2}\')'
    )
    test = try_collectives(4)
    assert (test.passed, test.ranks, test.collectives) == (False, 4, "nccl")
    assert "7 words" in test.error


def test_the_test_is_two_ranks_on_cpu_or_one_a_gpu_up_to_eight(torchrun_is):
    torchrun_is("")
    tests = [try_collectives(gpus) for gpus in (0, 1, 2, 16)]
    assert [(test.ranks, test.device) for test in tests] == [(2, "cpu"), (2, "cpu"), (2, "cuda"), (8, "cuda")]
