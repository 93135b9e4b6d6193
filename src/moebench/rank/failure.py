"""Why an exception on a rank ends its case."""

import errno

import torch

from moebench.status import Reason

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "std::bad_alloc", "ALLOC_FAILED")
"""In the RuntimeErrors of torch's CPU allocator, of CUDA, NCCL and cuBLAS, and of C++."""


def reason_of(error: BaseException) -> Reason:
    """OUT_OF_MEMORY for whatever an allocator raises, of a GPU, of the host or of Python; else CRASHED."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return Reason.OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return Reason.OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
        return Reason.OUT_OF_MEMORY
    return Reason.CRASHED
