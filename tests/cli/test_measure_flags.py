"""--cuda-graph and --l2-flush: for all cases, and only where there is a GPU."""

import pytest

from moebench.cases.expand import select
from moebench.cases.machine import Machine
from moebench.cases.matrix import load_matrix
from moebench.cli.running import plan_of
from moebench.errors import UsageError

LAPTOP, GPU_HOST = Machine(cores=2, available_bytes=2**34), Machine(cores=2, available_bytes=2**34, gpu_bytes=(2**37,))


@pytest.mark.parametrize("flag", ["cuda_graph", "l2_flush"])
def test_a_flag_holds_for_every_case_and_for_the_reports_meta_and_leaves_the_rest(flag):
    before = select(load_matrix("quick"))
    after = plan_of(before, GPU_HOST, "auto", {flag: True}, {"matrix": "quick"})
    assert {getattr(one.case.measure, flag) for one in after.cases} == {True}
    assert getattr(after.measure, flag)
    assert after.asked == {"matrix": "quick", "device": "auto", "measured": {flag: True}}
    for case, one in zip(before.cases, after.cases, strict=True):
        assert one.case.measure.model_copy(update={flag: False}) == case.measure
        assert one.case.id == case.id


@pytest.mark.parametrize(("device", "machine", "why"), [
    ("cpu", GPU_HOST, "--device cpu was given"),
    ("auto", LAPTOP, "this machine has no GPU"),
])  # fmt: skip
def test_on_a_cpu_the_flags_are_a_mistake(device, machine, why):
    with pytest.raises(UsageError, match=f"--cuda-graph --l2-flush: works on GPUs only, and {why}"):
        plan_of(select(load_matrix("quick")), machine, device, {"cuda_graph": True, "l2_flush": True}, {})


def test_without_flags_nothing_changes():
    selection = select(load_matrix("quick"))
    assert [one.case for one in plan_of(selection, LAPTOP, "cpu", {}, {}).cases] == selection.cases
