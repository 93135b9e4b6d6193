"""What a battery item is given: the ranks of one torchrun, and cases built on them."""

from dataclasses import dataclass
from typing import Any

import torch
from tests.backends.battery.watched import WatchedExchange
from tests.reduce.build import make_case
from torch import Tensor

from moebench.backends.protocol import Backend, Setup, Stages
from moebench.backends.registry import load_backend
from moebench.cases.case import Capacity, Case, Category, Mode, Pipeline, Precision
from moebench.cases.shape import Shape
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import Inputs, make_inputs, make_routing
from moebench.rank.step import Step

CPU = torch.device("cpu")
SHAPE = Shape(T=10, D=64, E=8, K=2, F=32, S=1)

KINDS = [
    ("torch", Precision.BF16, Pipeline.EAGER),
    ("torch", Precision.MXFP8, Pipeline.EAGER),
    ("dist_moe", Precision.BF16, Pipeline.STANDARD),
    ("dist_moe", Precision.MXFP8, Pipeline.STAGED),
    ("dist_moe", Precision.MXFP8, Pipeline.MEGA),
    ("mok", Precision.BF16, Pipeline.NATIVE),
    ("mok", Precision.MXFP8, Pipeline.NATIVE),
]
"""Every backend in every precision and pipeline that it has."""

SMALL = Capacity(pad_rows=32, minibatch_rows=32, macrobatch_rows=64, chunks=4)


@dataclass(frozen=True)
class World:
    rank: int
    size: int

    def case(
        self,
        kind: tuple[str, Precision, Pipeline],
        mode: Mode,
        imbalances: tuple[float, ...] = (1.0,),
        shape: Shape = SHAPE,
        capacity: Capacity = SMALL,
    ) -> Case:
        """A case of this world's size. One rank receives every row, whatever the imbalances."""
        backend, precision, pipeline = kind
        imbalances = (1.0,) * len(imbalances) if self.size == 1 else imbalances
        packing = {"category": Category.PACKING, "profile": "A"} if len(imbalances) > 1 else {}
        return make_case(
            backend,
            self.size,
            mode=mode,
            precision=precision,
            pipeline=pipeline,
            shape=shape,
            imbalance=imbalances[0],
            layer_imbalances=imbalances,
            capacity=capacity,
            **packing,
        )

    def prepare(self, case: Case, *, recording: bool = False) -> "Ready":
        """A case ready to run on this rank; `recording` fills `stages`, with the collectives among them."""
        ids_PTK, stages = make_routing(case), Stages(recording)
        exchange = WatchedExchange(self.rank, self.size, stages) if recording else Exchange(self.rank, self.size)
        inputs = make_inputs(case, self.rank, CPU, ids_PTK)
        setup = Setup(case, self.rank, CPU, exchange, inputs.weights, ids_PTK, stages)
        backend = load_backend(case.backend)(setup)
        return Ready(Step(case, backend, inputs), backend, inputs, exchange, stages)


@dataclass(frozen=True)
class Ready:
    step: Step
    backend: Backend
    inputs: Inputs
    exchange: Exchange
    stages: Stages

    def run(self) -> dict[str, Tensor]:
        """One iteration: y, and in training every gradient."""
        y_TD = self.step.forward()
        self.step.backward(y_TD)
        found = {"y": y_TD.detach().clone()}
        if self.step.case.training:
            found |= {name: gradient.clone() for name, gradient in self._gradients().items()}
        self.step.clear_gradients()
        return found

    def _gradients(self) -> dict[str, Tensor]:
        inputs = self.inputs
        leaves = {"dx": inputs.x_TD}
        for l, (scores_TK, weights) in enumerate(zip(inputs.scores_TK, inputs.weights, strict=True)):
            leaves[f"dscores {l}"] = scores_TK
            names = ("dw13", "dw2", "dshared13", "dshared2")
            leaves |= {f"{name} {l}": w for name, w in zip(names, weights.parameters(), strict=True)}
        found = {}
        for name, leaf in leaves.items():
            expect(leaf.grad is not None, f"{name} is missing")
            found[name] = leaf.grad
        return found  # type: ignore[return-value]


def expect(true: bool, message: str) -> None:
    if not true:
        raise AssertionError(message)


def same(got: Any, want: Any, what: str = "value") -> None:
    expect(got == want, f"{what} is {got!r}, expected {want!r}")


def bitwise(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for name, tensor in want.items():
        expect(bool(torch.equal(got[name], tensor)), f"{name} differs by {distance(got[name], tensor):.3g}")


def within(got: dict[str, Tensor], want: dict[str, Tensor], limit: float) -> None:
    """Relative L2 of every tensor."""
    for name, tensor in want.items():
        error = distance(got[name], tensor)
        expect(error <= limit, f"{name} is off by {error:.3g}, limit {limit:g}")


def distance(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm().clamp_min(1e-30))
