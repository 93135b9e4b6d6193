"""One iteration as CUDA graphs, so that the host launches it at once: for shapes that wait for their launches.

Forward and backward are graphs of their own over one memory pool, because an iteration has an event between them.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from moebench.rank.exchange import Exchange, Ledger
from moebench.rank.step import Step

SIDE_ITERATIONS = 3
"""Eager iterations on the capture's stream first: libraries take their workspaces per stream."""


@dataclass(frozen=True)
class Part:
    """A captured graph, and the bytes that each replay of it hands to the collectives."""

    graph: torch.cuda.CUDAGraph
    tx_bytes: Counter[str]
    rx_bytes: Counter[str]

    def replay(self, ledger: Ledger) -> None:
        self.graph.replay()
        ledger.tx_bytes.update(self.tx_bytes)
        ledger.rx_bytes.update(self.rx_bytes)


@dataclass(frozen=True)
class GraphStep(Step):
    """A step that replays what was captured. Inputs, outputs and gradients stay at their addresses."""

    ledger: Ledger
    forward_part: Part
    backward_part: Part | None
    y_TD: Tensor
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Input and output of each layer: the check sees what the graph computed."""

    def forward(self, observe: Callable[[int, Tensor, Tensor], None] | None = None) -> Tensor:
        self.forward_part.replay(self.ledger)
        if observe is not None:
            for l, (h_TD, layer_y_TD) in enumerate(self.seen):
                observe(l, h_TD, layer_y_TD)
        return self.y_TD

    def backward(self, y_TD: Tensor) -> None:
        if self.backward_part is not None:
            self.backward_part.replay(self.ledger)

    def clear_gradients(self) -> None:
        """Nothing to clear: each replay writes the gradients anew."""

    def release(self) -> None:
        """Destroy the graphs; NCCL waits for them when its communicator ends."""
        for part in (self.forward_part, self.backward_part):
            if part is not None:
                part.graph.reset()


def capture(step: Step, exchange: Exchange, device: torch.device) -> GraphStep:
    """Capture one iteration of a warmed-up step. Ranks must capture alike; nothing is sent while they do.

    Raises what CUDA says where something cannot be captured, such as a read on the host.
    """
    step.clear_gradients()
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(SIDE_ITERATIONS):
            step.backward(step.forward())
            step.clear_gradients()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    pool = torch.cuda.graph_pool_handle()
    seen: list[tuple[Tensor, Tensor]] = []
    outputs: list[Tensor] = []

    def forward() -> None:
        outputs.append(step.forward(lambda l, h_TD, y_TD: seen.append((h_TD.detach(), y_TD.detach()))))

    forward_part = _capture(forward, exchange.ledger, pool, stream)
    backward_part = None
    if step.case.training:
        backward_part = _capture(lambda: step.backward(outputs[0]), exchange.ledger, pool, stream)
    torch.cuda.synchronize(device)
    return GraphStep(
        step.case,
        step.backend,
        step.inputs,
        exchange.ledger,
        forward_part,
        backward_part,
        outputs[0].detach(),
        seen,
    )


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The same for all cases: each stream costs a workspace of cuBLAS that stays until the process ends."""
    return torch.cuda.Stream(device)


def _capture(work: Callable[[], None], ledger: Ledger, pool: Any, stream: torch.cuda.Stream) -> Part:
    """Errors of capture are told of this thread's calls only: NCCL's watchdog asks CUDA in a thread of its own."""
    tx_before, rx_before = ledger.tx_bytes.copy(), ledger.rx_bytes.copy()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return Part(graph, ledger.tx_bytes - tx_before, ledger.rx_bytes - rx_before)
