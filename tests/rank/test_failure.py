"""An exception's reason, whoever's allocator raised it."""

import errno

import pytest
import torch

from moebench.rank.failure import reason_of
from moebench.status import Reason

CUDA = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"


def raised(work):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        work()
    return caught.value


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.empty(2**60, dtype=torch.uint8),
        lambda: torch.empty(2**60).untyped_storage(),
        lambda: bytearray(2**60),
    ],
)
def test_what_allocators_of_this_machine_raise_is_out_of_memory(work):
    assert reason_of(raised(work)) is Reason.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("tried to allocate 80 GiB"), Reason.OUT_OF_MEMORY),
        (RuntimeError(CUDA), Reason.OUT_OF_MEMORY),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            Reason.OUT_OF_MEMORY,
        ),
        (RuntimeError("std::bad_alloc"), Reason.OUT_OF_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Reason.OUT_OF_MEMORY),
        (OSError(errno.ENOSPC, "No space left on device"), Reason.CRASHED),
        (ValueError("the case is out of memory's way"), Reason.CRASHED),
        (RuntimeError("Connection closed by peer"), Reason.CRASHED),
        (SystemExit(1), Reason.CRASHED),
    ],
)
def test_an_allocators_error_is_told_from_others(error, reason):
    assert reason_of(error) is reason
