"""Weights in the layouts that mok takes, made outside the timed region: gate and up apart, each contiguous.

mok takes gate [e, F, D], up [e, F, D] and down [e, D, F]; w13_eGD has gate and up interleaved by expert, so the two
are copies unless there is one expert, while the shared expert's are views. In mxfp8 only quantised copies stay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from moebench.backends.protocol import LayerWeights

Quantize = Callable[[Tensor, bool, bool], tuple[Any, Any, Any, Any]]
"""mok's own: (weights, normal layout, transposed layout) -> (fp8, scales, transposed fp8, transposed scales)."""

Routed = tuple[Any, Any, Any]
"""Gate, up, down: tensors in bf16, tuples of them in mxfp8, by which mok knows the precision."""


@dataclass(frozen=True)
class Prepared:
    shared: tuple[Tensor, Tensor, Tensor]
    """Gate [F, D], up [F, D], down [D, F], bf16 in either precision."""
    forward: Routed
    backward: Routed
    copied_bytes: int
    """Bytes of routed weights that are held beside LayerWeights."""


def prepare_bf16(weights: LayerWeights) -> Prepared:
    gate_eFD, up_eFD, down_eDF = _routed(weights)
    routed = gate_eFD, up_eFD, down_eDF
    copies = [] if gate_eFD.data_ptr() == weights.w13_eGD.data_ptr() else [gate_eFD, up_eFD]
    return Prepared(_shared(weights), routed, routed, _bytes(*copies))


def prepare_mxfp8(
    weights: LayerWeights, quantize: Callable[..., tuple[Any, Any, Any, Any]], training: bool
) -> Prepared:
    """Forward takes the first pair of the four tensors; backward all four of gate and up, which it may recompute, but
    only the transposed pair of down."""
    gate, up, down = (tuple(quantize(w, True, training)) for w in _routed(weights))
    held = [tensor for quantised in (gate, up, down) for tensor in quantised if tensor is not None]
    return Prepared(_shared(weights), (gate[:2], up[:2], down[:2]), (gate, up, down[2:]), _bytes(*held))


def _routed(weights: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
    gate_eFD, up_eFD = weights.w13_eGD.detach().chunk(2, dim=1)
    return gate_eFD.contiguous(), up_eFD.contiguous(), weights.w2_eDF.detach().contiguous()


def _shared(weights: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
    gate_FD, up_FD = weights.shared13_GD.detach().chunk(2, dim=0)
    return gate_FD.contiguous(), up_FD.contiguous(), weights.shared2_DF.detach().contiguous()


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
