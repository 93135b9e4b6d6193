"""A process that must not outlive its parent: torchrun without its supervisor, a rank without its torchrun."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, death_signal: signal.Signals) -> None:
    """End this process when `parent_pid` ends. By the kernel on Linux; elsewhere a thread looks once a second."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent_pid:
            os.kill(os.getpid(), death_signal)
        return
    threading.Thread(target=_watch, args=(parent_pid, death_signal), daemon=True).start()


def _watch(parent_pid: int, death_signal: signal.Signals) -> None:
    while os.getppid() == parent_pid:
        time.sleep(1)
    os.kill(os.getpid(), death_signal)
