"""--cuda-graph and --l2-flush: for all cases, and only where there is a GPU."""

import pytest

from moebench.cases.expand import select
from moebench.cases.machine import Machine
from moebench.cases.matrix import load_matrix
from moebench.cli.sweep import _measured_so
from moebench.errors import UsageError

NONE = {"cuda_graph": False, "l2_flush": False}
LAPTOP, GPU_HOST = Machine(cores=2, available_bytes=2**34), Machine(cores=2, available_bytes=2**34, gpu_bytes=(2**37,))


@pytest.mark.parametrize("flag", ["cuda_graph", "l2_flush"])
def test_a_flag_holds_for_every_case_and_for_the_reports_meta_and_leaves_the_rest(flag):
    before = select(load_matrix("quick"))
    after = _measured_so(before, "auto", GPU_HOST, NONE | {flag: True})
    assert {getattr(case.measure, flag) for case in after.cases} == {True}
    assert getattr(after.matrix.measure, flag)
    for one, other in zip(before.cases, after.cases, strict=True):
        assert other.measure.model_copy(update={flag: False}) == one.measure
        assert other.id == one.id


@pytest.mark.parametrize(("device", "machine", "why"), [
    ("cpu", GPU_HOST, "--device cpu was given"),
    ("auto", LAPTOP, "this machine has no GPU"),
])  # fmt: skip
def test_on_a_cpu_the_flags_are_a_mistake(device, machine, why):
    with pytest.raises(UsageError, match=f"--cuda-graph --l2-flush: works on GPUs only, and {why}"):
        _measured_so(select(load_matrix("quick")), device, machine, {"cuda_graph": True, "l2_flush": True})


def test_without_flags_nothing_changes():
    selection = select(load_matrix("quick"))
    assert _measured_so(selection, "cpu", LAPTOP, NONE) is selection
