"""The kernel's count of processes that it killed for want of memory in this cgroup."""

import re
from pathlib import Path

_FILES = (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control"))
"""Of cgroup v2, and of v1."""


def oom_kills() -> int:
    """Kills since the cgroup was made; 0 where the kernel does not say."""
    for path in _FILES:
        try:
            found = re.search(r"^oom_kill (\d+)", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0
