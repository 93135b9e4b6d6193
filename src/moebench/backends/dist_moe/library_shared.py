"""The shared experts beside the library's routed ones, which has none: BF16 on a stream of their own, differentiable.

Backward needs no fork of its own: autograd runs a function on the stream of its forward, and orders the streams.
"""

import torch
from torch import Tensor

from moebench.backends.shared import shared_expert


class SharedBeside:
    """`fork` begins the shared experts, `join` gives their output to the current stream. On CPU one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def fork(self, x_TD: Tensor, w13_GD: Tensor, w2_DF: Tensor) -> Tensor:
        """y_TD, to be used after `join` only."""
        if self._stream is None:
            return shared_expert(x_TD, w13_GD, w2_DF)
        self._stream.wait_stream(torch.cuda.current_stream())
        x_TD.record_stream(self._stream)  # also for backward: x must not be freed while either pass may read it
        with torch.cuda.stream(self._stream):
            return shared_expert(x_TD, w13_GD, w2_DF)

    def join(self, y_TD: Tensor) -> Tensor:
        if self._stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            y_TD.record_stream(current)
        return y_TD
