"""A backend whose process may not grow by more than half a GiB: the fault that takes all memory takes that."""

import resource
from pathlib import Path

from moebench.backends.torch_ep import TorchBackend

MORE_BYTES = 2**29


class Limited(TorchBackend):
    name = "limited"

    @classmethod
    def unsupported(cls, case):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_BYTES, most))
        return super().unsupported(case)
