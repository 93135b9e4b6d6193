"""Kernels of `DeviceTimer`. Triton comes with CUDA builds of torch; a CPU never imports this."""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _stamp(into_ptr):
    tl.store(into_ptr, tl.extra.cuda.globaltimer())


@triton.jit(do_not_specialize=["ns", "place"])
def _wait(from_ptr, ns, took_ptr, place):
    begin = tl.load(from_ptr)
    now = tl.extra.cuda.globaltimer()
    while now < begin + ns:
        now = tl.extra.cuda.globaltimer()
    tl.store(took_ptr + place, now - begin)
    tl.store(from_ptr, now)


def stamp(into_ns: Tensor) -> None:
    """Write the GPU's time into an int64 tensor of one element, when the stream comes to it."""
    _stamp[(1,)](into_ns, num_warps=1)


def wait(from_ns: Tensor, ns: int, took_ns: Tensor, place: int) -> None:
    """Hold up the stream until `ns` nanoseconds after `from_ns`; then note the time that passed, and that it is now."""
    _wait[(1,)](from_ns, ns, took_ns, place, num_warps=1)
