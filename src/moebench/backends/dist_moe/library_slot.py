"""The activation slot of the real dist_moe as a run has left it, and what one forward keeps in it.

The slot is a stack: every forward in grad mode pushes a level and its backward pops it. A forward without its
backward leaks its level, and when the levels are used up the library overwrites memory in silence; hence the check
after timing. All this synchronises with the device and belongs outside the timed region.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def check_slot(context: Any) -> None:
    """Raise if the run overflowed a buffer (ValueError) or left a level of the slot in use (RuntimeError)."""
    buffer = getattr(context, "activation_buffer", None)
    overflow = getattr(buffer, "check_overflow", None)
    if overflow is not None:
        overflow()
    at = getattr(buffer, "buffer_offsets", None)
    start = getattr(buffer, "initial_buffer_offsets", None)
    if at is not None and start is not None and not torch.equal(at, start):
        raise RuntimeError(
            f"dist_moe's activation slot was left in use (offsets {at.tolist()}, at the start {start.tolist()}): "
            "a forward had no backward, so what was measured cannot be trusted"
        )


@dataclass(frozen=True)
class Kept:
    """What one forward keeps for its backward."""

    bytes_P: list[int]
    """On every rank, after the last layer."""
    recomputed_layers: int


def kept_by_forward(context: Any, ep: int, forward: Callable[[Callable[[], None]], None]) -> Kept | None:
    """Run a forward that calls its argument after every layer, and its backward; None if the library tells nothing.

    A layer that recomputes keeps its input and no more, on every rank alike: the fullest rank decides for all.
    """
    saved = getattr(getattr(context, "activation_buffer", None), "saved_activation_bytes_per_rank", None)
    if saved is None:
        return None
    seen: list[Tensor] = []
    forward(lambda: seen.append(saved.clone()))
    bytes_LP = torch.stack(seen).view(len(seen), -1, ep).sum(1).cpu()
    added_LP = bytes_LP.diff(dim=0, prepend=torch.zeros_like(bytes_LP[:1]))
    input_bytes = context.memory_plan.saved_input_bytes_per_layer
    return Kept(bytes_LP[-1].tolist(), int((added_LP.amax(dim=1) == input_bytes).sum()))
