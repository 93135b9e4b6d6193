"""How long a sweep will take, before anything has run. Modeled from measurements on small CPU machines and one
H200; once cases have ended, their measured times correct it."""

from moebench.cases.case import Case, Precision
from moebench.cases.work import useful_flops

START_UP_S = 4.0
RANK_START_CORE_S = 2.6
"""CPU seconds that a rank takes to import torch."""
CASE_S = 0.1
"""Set-up, agreement and traces of a case."""
CPU_PASS_S = {Precision.BF16: 0.009, Precision.MXFP8: 0.016, Precision.NVFP4: 0.0}
"""One pass of a layer on CPU beside its products: sorts, gloo, quantisation, the interpreter. No CPU does nvfp4."""
CPU_FLOPS_PER_CORE_S = 2e10
GPU_FLOPS_PER_S = 2e14
GPU_PASS_S = 0.001


def launch_s(ranks: int, cores: int) -> float:
    """Seconds until the ranks of a launch have met."""
    return START_UP_S + RANK_START_CORE_S * ranks / cores


def case_s(case: Case, cores: int, on_gpu: bool) -> float:
    """Seconds of one case: warm-ups, windows, and checks as three iterations more."""
    m = case.measure
    iterations = m.warmups + m.windows * m.iterations + 4
    passes = case.layers * case.passes
    if on_gpu:
        return CASE_S + iterations * (passes * GPU_PASS_S + useful_flops(case) / GPU_FLOPS_PER_S)
    crowd = max(1.0, case.ep / cores)
    work_s = case.ep * useful_flops(case) / (min(case.ep, cores) * CPU_FLOPS_PER_CORE_S)
    return CASE_S * crowd + iterations * (passes * CPU_PASS_S[case.precision] * crowd + work_s)


def sweep_s(cases: list[Case], cores: int, on_gpu: bool) -> float:
    """Seconds of all cases, with one launch for each world size."""
    launches = sum(launch_s(ranks, cores) for ranks in {case.ep for case in cases})
    return launches + sum(case_s(case, cores, on_gpu) for case in cases)
