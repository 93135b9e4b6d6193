"""How far off moebench's figures are, and what measuring costs: run as `python tests/perf/instrument.py`.

One table, in half a minute on an idle CPU and less than a minute on a GPU; exit status 1 where a limit is exceeded.

- Figures: what `moebench doctor --self-test` reads off backends that take a known time.
- Tracing: the same iterations in windows with all instruments, and in a bare loop between two marks, in blocks of ABBA
  in one process. Times are per iteration of the whole loop, so that gaps between iterations count. What the spin took
  beyond its 1 ms by its own clock is taken off, in both: others had the core then. A GPU's real layer, which is there
  to show whether the sampler slows work down, is compared as it is; it has no limit, for the card's clock moves it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import fmean, median

import torch
import torch.distributed as dist

from moebench.backends.protocol import Backend, Setup, Stages
from moebench.backends.spin import SteadySpin
from moebench.backends.torch_ep import TorchBackend
from moebench.cases.case import Case, Category, Mode, Pipeline, Precision
from moebench.cases.machine import this_machine
from moebench.cases.shape import Shape
from moebench.cli.progress import SweepProgress
from moebench.launch.self_test import self_test
from moebench.rank.clock import Clock, make_clock
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.instruments import GpuInstruments, Instruments
from moebench.rank.step import Step
from moebench.rank.timing import meet, no_garbage_collection, settle_garbage, time_window, warm_up
from moebench.reduce.metrics import window_spread
from moebench.show.console import make_console
from moebench.show.layout import Cell, Column, Section, paragraph, print_sections
from moebench.show.text import ABSENT, counted, figure

LIMITS = {"cpu": 0.02, "cuda": 0.005}
"""Of the cost of tracing, as a share of an iteration of 1 ms."""
SPIN = Shape(T=8, D=64, E=4, K=1, F=8)
"""1 ms forward."""
REAL = Shape(T=640, D=7168, E=8, K=6, F=3072)
"""About 1 ms forward on one H200."""
WINDOWS = {"cpu": (20, 320), "cuda": (200, 32)}
"""Iterations of a window, and windows of traced and bare loops together. Short ones on a CPU, since most then escape
the programs around; on a GPU so long that its sensors are read at most five times a second."""

COLUMNS = [
    Column("asked", 2),
    Column("truth", 1),
    Column("measured", 0),
    Column("error", 0),
    Column("limit", 0),
    Column("spread", 1),
    Column("windows", 3),
    Column("within", 0),
]


class Bracketed:
    """A step that marks the begin of its first iteration and the end of its last."""

    def __init__(self, step: Step, clock: Clock, iterations: int) -> None:
        self.case, self.backward = step.case, step.backward
        self._step, self._clock, self._left = step, clock, iterations
        self._first = True

    def forward(self) -> torch.Tensor:
        if self._first:
            self._clock.mark(0)
            self._first = False
        return self._step.forward()

    def clear_gradients(self) -> None:
        self._step.clear_gradients()
        self._left -= 1
        if self._left == 0:
            self._clock.mark(1)


def make_step(backend: type[Backend], shape: Shape, device: torch.device) -> Step:
    case = Case(
        backend=backend.name, mode=Mode.INFERENCE, ep=1, precision=Precision.BF16, pipeline=Pipeline.EAGER,
        category=Category.SINGLE_LAYER, shape=shape, imbalance=1.0, layer_imbalances=(1.0,),
    )  # fmt: skip
    ids_PTK = make_routing(case)
    inputs = make_inputs(case, 0, device, ids_PTK)
    return Step(case, backend(Setup(case, 0, device, Exchange(0, 1), inputs.weights, ids_PTK, Stages())), inputs)


def traced_ms(step: Step, iterations: int, device: torch.device, instruments: Instruments) -> float:
    clock = make_clock(device, 2)
    instruments.begin()
    window = time_window(Bracketed(step, clock, iterations), iterations, device, Exchange(0, 1), instruments)
    instruments.end([window])
    return clock.finish()[1] / iterations


def bare_ms(step: Step, iterations: int, device: torch.device) -> float:
    clock = make_clock(device, 2)
    with no_garbage_collection():
        meet(device)
        clock.mark(0)
        for _ in range(iterations):
            step.backward(step.forward())
            step.clear_gradients()
        clock.mark(1)
    return clock.finish()[1] / iterations


def beyond_1_ms(step: Step, iterations: int) -> float:
    """By how much the last iterations of a spin of 1 ms took longer by its own clock, mean in ms."""
    return fmean(step.backend.timer.took_ms()[-iterations:]) - 1


def both_ms(
    step: Step, device: torch.device, instruments: Instruments, excess: Callable[[Step, int], float]
) -> tuple[list[float], list[float]]:
    """Ms an iteration, traced and bare, mean of each block's two; less what `excess` says of it."""
    iterations, windows = WINDOWS[device.type]
    warm_up(step, 20)
    traced, bare = [], []
    for _ in range(windows // 4):
        for into in (traced, bare, bare, traced):
            if into is traced:
                loop_ms = traced_ms(step, iterations, device, instruments)
            else:
                loop_ms = bare_ms(step, iterations, device)
            into.append(loop_ms - excess(step, iterations))
    return [fmean(pair) for pair in pairs(traced)], [fmean(pair) for pair in pairs(bare)]


def pairs(values: list[float]) -> Iterator[tuple[float, float]]:
    return zip(values[0::2], values[1::2], strict=True)


def tracing(device: torch.device) -> Iterator[list[Cell]]:
    torch.set_num_threads(1)  # as ranks have: several would wait for each other where cores are taken
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    instruments = GpuInstruments(device, 1) if device.type == "cuda" else Instruments()
    settle_garbage()
    works = [("tracing a spin", SteadySpin, SPIN, 1.0, beyond_1_ms, LIMITS[device.type])]
    if device.type == "cuda":
        works.append(("tracing torch", TorchBackend, REAL, None, lambda step, iterations: 0.0, None))
    for name, backend, shape, asked_ms, excess, limit in works:
        traced, bare = both_ms(make_step(backend, shape, device), device, instruments, excess)
        cost = median(a / b - 1 for a, b in zip(traced, bare, strict=True))
        windows = WINDOWS[device.type][1]
        yield row(f"{name}, ms", asked_ms, median(bare), median(traced), cost, limit, window_spread(traced), windows)
    instruments.close()
    dist.destroy_process_group()


def row(
    name: str,
    asked: float | None,
    truth: float,
    measured: float,
    error: float,
    limit: float | None,
    spread: float | None,
    windows: int,
) -> list[Cell]:
    within = ABSENT if limit is None else "yes" if abs(error) <= limit else "NO"
    shown = [figure(value) for value in (asked, truth, measured)]
    shares = [f"{error:+.2%}", *(ABSENT if share is None else f"{share:.1%}" for share in (limit, spread))]
    return [name, *shown, *shares, str(windows), within]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    options = parser.parse_args()
    tested = self_test(this_machine(), partial(SweepProgress, make_console(stderr=True)), options.device)
    rows = [
        row(f"{f.name}, {f.unit}", f.asked, f.took, f.measured, f.bias, f.limit, f.spread, f.windows)
        for f in tested.figures
    ]
    on_gpu = options.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    rows += tracing(device)
    console = make_console()
    what = torch.cuda.get_device_name() if on_gpu else this_machine().processor
    paragraph(console, f"{what}, torch {torch.__version__}; figures of {counted(tested.ranks, 'rank')}")
    print_sections(console, COLUMNS, [Section("", rows)])
    for finding in tested.findings:
        paragraph(console, f"{finding.what}.")
    return 1 if not tested.fine or any(cells[-1] == "NO" for cells in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
