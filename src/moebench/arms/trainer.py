"""What both arms have in common: one step at a time on one rank, enqueued without waiting for the device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from moebench.arms.config import Mode, Preset
from moebench.arms.loader import Loader
from moebench.arms.model import Stage
from moebench.arms.optimizer import Optimizer
from moebench.arms.seams import Seams

Result = TypeVar("Result")

MOST_SHAPES = 256
"""Of one function: the local arm has one for each group of units."""

WARMUP_STEPS = 3
"""Before the clock starts, and forgotten: kernels are compiled, libraries take their workspaces."""


class Trainer(ABC):
    """One arm on one rank. `loss` holds the latest step's training loss on the last rank."""

    optimizer: Optimizer
    stage: Stage
    """The rank's part of the model, for evaluation: its weights are those that are trained."""

    lag = 0
    """Steps after which the first batch has been through the last block."""

    def __init__(self, preset: Preset, mode: Mode, device: torch.device, seams: Seams, loader: Loader) -> None:
        self.preset, self.mode, self.device = preset, mode, device
        self.seams, self.loader = seams, loader
        self.loss = torch.zeros((), device=device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @abstractmethod
    def load(self, step: int) -> None:
        """Put the inputs of a step where `compute` reads them."""

    @abstractmethod
    def compute(self) -> None:
        """Forward, backward and update, from inputs at fixed addresses."""

    @abstractmethod
    def initialise(self) -> None:
        """Initial weights, in place."""

    @abstractmethod
    def state(self) -> Mapping[str, Tensor]:
        """All that a checkpoint needs beside the optimizer's state."""

    def step(self, step: int, progress: float) -> None:
        """Enqueue one step. `progress`: the share of the budget that is used up."""
        self.optimizer.set_rate(step, progress)
        self.load(step)
        if self._graph is not None:
            self._graph.replay()
        else:
            self.compute()

    def warm_up(self) -> None:
        """Compile, and capture if asked to; then everything is as it was at the beginning."""
        if self.mode == "graphed":
            self._capture()
        else:
            for step in range(WARMUP_STEPS):
                self.step(step, 0.0)
        self.finish()
        with torch.no_grad():
            self.initialise()
            self.optimizer.forget()
        self.seams.ledger.clear()
        self.loader.seconds = 0.0

    def finish(self) -> None:
        """Wait for everything that was enqueued."""
        self.seams.flush()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def compiled(self, function: Callable[..., Result]) -> Callable[..., Result]:
        if self.mode == "eager":
            return function
        torch._dynamo.config.recompile_limit = MOST_SHAPES
        return torch.compile(function, dynamic=False)

    def _capture(self) -> None:
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for step in range(WARMUP_STEPS):
                self.optimizer.set_rate(step, 0.0)
                self.load(step)
                self.compute()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.compute()
        self._graph = graph
