"""How close the torch backend comes to the card: run on one H200 as `python tests/perf/h200_rates.py`.

Everything is compared inside one run: blocks of ABBA, A the layer and B an 8192-cubed bf16 cuBLAS product (or a
device copy, for the case that streams all weights), because the card's own rate drifts with its power state.
"""

import argparse
import os
import statistics

import torch
import torch.distributed as dist
import triton

from moebench.backends.protocol import Setup, Stages
from moebench.backends.registry import load_backend
from moebench.cases.case import Case, Category, Measure, Mode, Pipeline, Precision
from moebench.cases.shape import Shape
from moebench.cases.work import useful_flops
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.leaving import leave
from moebench.rank.step import Step
from moebench.rank.timing import settle_garbage, time_window, warm_up

N = 8192
DEVICE = torch.device("cuda", 0)


def make_step(backend: str, mode: Mode, E: int, F: int, l2_flush: bool = False) -> Step:
    pipeline = {"torch": Pipeline.EAGER, "dist_moe": Pipeline.STANDARD, "mok": Pipeline.NATIVE}[backend]
    case = Case(
        backend=backend, mode=mode, ep=1, precision=Precision.BF16, pipeline=pipeline, category=Category.SINGLE_LAYER,
        shape=Shape(T=2048, D=7168, E=E, K=6, F=F), imbalance=1.0, layer_imbalances=(1.0,),
        measure=Measure(l2_flush=l2_flush),
    )  # fmt: skip
    ids_PTK = make_routing(case)
    inputs = make_inputs(case, 0, DEVICE, ids_PTK)
    setup = Setup(case, 0, DEVICE, Exchange(0, 1), inputs.weights, ids_PTK, Stages())
    return Step(case, load_backend(backend)(setup), inputs)


def time_ms(work, iterations: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(iterations):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / iterations


def paired(a, b, blocks: int, a_iterations: int, b_iterations: int) -> tuple[float, float]:
    """Median ms of a and b over ABBA blocks."""
    for work in (a, b):
        time_ms(work, 3)
    a_ms, b_ms = [], []
    for _ in range(blocks):
        for arm in "ABBA":
            work, iterations, into = (a, a_iterations, a_ms) if arm == "A" else (b, b_iterations, b_ms)
            into.append(time_ms(work, iterations))
    return statistics.median(a_ms), statistics.median(b_ms)


def _compare_with_do_bench(blocks: int) -> None:
    """moebench's iteration time against triton.testing.do_bench of the same callable, alternating in ABBA.

    do_bench overwrites the L2 cache before each call, so moebench does too.
    """
    step, exchange = make_step("torch", Mode.INFERENCE, 24, 3072, l2_flush=True), Exchange(0, 1)
    warm_up(step, 10)
    settle_garbage()
    ratios = []
    for _ in range(blocks):
        ms: dict[str, list[float]] = {"A": [], "B": []}
        for arm in "ABBA":
            if arm == "A":
                ms[arm].append(statistics.fmean(time_window(step, 50, DEVICE, exchange).iteration_ms))
            else:
                ms[arm].append(triton.testing.do_bench(step.forward, warmup=5, rep=150, return_mode="mean"))
        ratios.append(statistics.fmean(ms["A"]) / statistics.fmean(ms["B"]))
    print(f"moebench / do_bench, inference E=24: median ratio {statistics.median(ratios):.4f} over {blocks} blocks")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=10)
    options = parser.parse_args()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    left, right = (torch.randn(N, N, device=DEVICE).bfloat16() for _ in range(2))

    def product(left: torch.Tensor = left, right: torch.Tensor = right) -> None:
        torch.mm(left, right)

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; layer T=2048 D=7168 K=6 F=3072 S=1, ep 1, bf16")
    print("backend  mode       E    ms      TFLOP/s  cuBLAS TFLOP/s  share")
    for backend in ("torch", "dist_moe", "mok"):
        for mode in Mode:
            for E in (24, 12, 6):
                step = make_step(backend, mode, E, 3072)

                def iteration(step=step) -> None:
                    step.backward(step.forward())
                    step.clear_gradients()

                layer_ms, product_ms = paired(iteration, product, options.blocks, 10, 10)
                rate = useful_flops(step.case) / layer_ms / 1e9
                cublas = 2 * N**3 / product_ms / 1e9
                figures = f"{layer_ms:<7.3f} {rate:<8.0f} {cublas:<15.0f} {rate / cublas:.1%}"
                print(f"{backend:8} {mode:10} {E:<4} {figures}")
                del step
                torch.cuda.empty_cache()
    _compare_with_do_bench(options.blocks)
    del left, right, product
    step = make_step("torch", Mode.INFERENCE, 384, 3072)
    source = torch.empty(2**33, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    layer_ms, copy_ms = paired(step.forward, lambda: target.copy_(source), options.blocks, 3, 3)
    weight_bytes = sum(p.numel() * p.element_size() for w in step.inputs.weights for p in w.parameters())
    streamed, copied = weight_bytes / layer_ms / 1e6, 2 * source.numel() / copy_ms / 1e6
    print(f"E=384 inference: {layer_ms:.3f} ms, weights at {streamed:.0f} GB/s; device copy {copied:.0f} GB/s: "
          f"{streamed / copied:.1%}")  # fmt: skip
    leave()


if __name__ == "__main__":
    main()
