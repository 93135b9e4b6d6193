"""What must be known of a run of the real dist_moe beside its times: which one it was, and what it was given."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Note:
    """For the trace's environment; `dataclasses.asdict` makes it JSON."""

    package: str | None
    """Version of dist-moe."""
    scratch_rows: int
    """Rows of one layer that a rank can receive; one more traps."""
    buffer_bytes: int
    """Activation slot and scratch, reserved whatever the routing."""
    prepared_weight_bytes: int
    """Weights quantised before timing, beside those in bf16; 0 in bf16."""
    num_sms: int | None
    """SMs of each launch; None: all, so that the shared expert's kernels wait for some to be free."""


def prepared_bytes(weight: Any) -> int:
    """Bytes that a prepared weight owns beside its source."""
    if isinstance(weight, Tensor):
        return 0
    source = weight.source.untyped_storage().data_ptr()
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in weight.storage_tensors()}
    return sum(size for address, size in storages.items() if address != source)
