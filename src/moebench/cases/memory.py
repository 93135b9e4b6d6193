"""Memory that a rank needs for a case. Modeled, not measured: it decides what can run, and it is no result.

Legend: T tokens of a rank, D hidden, E experts in total, F FFN width, K experts per token, S shared experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moebench.backends.dist_moe import capacity as dist_moe
from moebench.backends.mok import capacity as mok
from moebench.cases.case import Case, Precision
from moebench.cases.work import WEIGHT_BYTES, layer_rows, rows_per_rank

_ACTIVATIONS = {"dist_moe": dist_moe.activations_bytes, "mok": mok.activations_bytes}


@dataclass(frozen=True)
class Memory:
    """Modeled bytes of one rank, without what its process takes."""

    weights_bytes: int
    quantised_weights_bytes: int
    gradients_bytes: int
    activations_bytes: int
    """What the timed iteration keeps and works in, on the rank that receives the most rows."""
    reference_bytes: int
    """What the fp32 check works in. It runs before and after timing, never during it."""

    @property
    def timed_bytes(self) -> int:
        """The peak during timing: what a report's peak memory measures."""
        return self._resident_bytes + self.activations_bytes

    @property
    def total_bytes(self) -> int:
        return self._resident_bytes + max(self.activations_bytes, self.reference_bytes)

    @property
    def _resident_bytes(self) -> int:
        return self.weights_bytes + self.quantised_weights_bytes + self.gradients_bytes


def memory_of(case: Case) -> Memory:
    """Modeled memory of the fullest rank, from the planned rows. The case must not be `unsupported`.

    Weights are bf16, routed and shared, of every layer. Gradients count 4 bytes a weight, which is what the
    published peaks of training fit. Buffers count at the rows used, not at what a library may reserve.
    """
    s = case.shape
    routed = 3 * s.D * s.F * case.experts_per_rank * case.layers
    shared = 3 * s.D * s.F * s.S * case.layers
    tokens = _token_bytes(case) * (case.layers if case.training else 1)
    received = _ACTIVATIONS.get(case.backend, _eager_activations_bytes)(case)
    return Memory(
        weights_bytes=2 * (routed + shared),
        quantised_weights_bytes=int(routed * _quantised_bytes_per_weight(case)),
        gradients_bytes=4 * (routed + shared) if case.training else 0,
        activations_bytes=tokens + _wire_bytes(case) + received,
        reference_bytes=_reference_bytes(case),
    )


def memory_bytes_per_rank(case: Case) -> int:
    """Modeled bytes that a rank needs for a case, without its process (`Machine.process_bytes`)."""
    return memory_of(case).total_bytes


def together_bytes_per_rank(cases: Sequence[Case]) -> int:
    """Modeled bytes that a rank needs to hold cases of one workload at once; weights and gradients they share."""
    each = [memory_of(case) for case in cases]
    shared = max(one.weights_bytes + one.gradients_bytes for one in each)
    own = sum(one.quantised_weights_bytes + one.activations_bytes for one in each)
    return shared + own + max(one.reference_bytes for one in each)


def _quantised_bytes_per_weight(case: Case) -> float:
    """Bytes of quantised copies of a routed weight, kept beside the bf16 one.

    mok keeps both orientations; dist_moe shares elements between them in training, with two sets of scales.
    """
    if case.precision is Precision.BF16:
        return 0
    if case.precision is Precision.NVFP4:
        return WEIGHT_BYTES[Precision.NVFP4]
    if case.backend == "dist_moe":
        return 1 + (2 / 32 if case.training else 1 / 32)
    return (2 if case.training or case.backend == "mok" else 1) * (1 + 1 / 32)


def _token_bytes(case: Case) -> int:
    """What a layer holds of its own tokens, whatever the routing: x, y, the shared expert's activations."""
    s = case.shape
    return s.T * (4 * s.D + 6 * s.F * s.S)


def _wire_bytes(case: Case) -> int:
    """Rows sent and rows returned of one layer, bf16."""
    return 4 * case.shape.T * case.shape.K * case.shape.D


def _eager_activations_bytes(case: Case) -> int:
    """Plain PyTorch: received x, gate and up, hidden, output; in mxfp8 their copies."""
    s = case.shape
    row = 4 * s.D + 6 * s.F + (0 if case.precision is Precision.BF16 else 2 * (s.D + s.F))
    layers = [row * int(rows_P.max()) for rows_P in rows_per_rank(case)]
    return sum(layers) + max(layers) if case.training else max(layers)


def _reference_bytes(case: Case) -> int:
    """x of all ranks and an output of its size in fp32, one expert in fp32, and that expert's rows.

    Training adds the gradients of all three.
    """
    s = case.shape
    fullest = max(int(rows_E.max()) for rows_E in layer_rows(case))
    forward = 4 * (2 * case.ep * s.T * s.D + 3 * s.D * s.F + fullest * (2 * s.D + 3 * s.F))
    return 2 * forward if case.training else forward
