"""A short launch that shows whether ranks of this machine can talk to each other, and how fast."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moebench.launch import torchrun

MOST_RANKS = 8
DEADLINE_S = 90.0
"""Of the whole test; most of it is for many ranks to import torch on few cores."""
TERM_S = 5.0
LAST_LINES = 4


class CollectiveTest(BaseModel):
    """An all-to-all between ranks of this machine: one a GPU, or two on the CPU."""

    model_config = ConfigDict(frozen=True)
    ranks: int
    device: str = Field(description="cuda or cpu")
    collectives: str = Field(description="nccl or gloo")
    passed: bool
    error: str | None = None
    seconds: float = Field(description="of the whole test, launch included")
    latency_us: float | None = Field(default=None, description="of a tiny all-to-all")
    bandwidth_gbps: float | None = Field(
        default=None, description="of a large one: 1e9 bytes that a rank sends to others in a second"
    )


def try_collectives(gpus: int, deadline_s: float = DEADLINE_S) -> CollectiveTest:
    """Launch the test and wait for it, not longer than the deadline. Leaves no process and no file behind."""
    on_gpus = gpus > 1
    ranks = min(gpus, MOST_RANKS) if on_gpus else 2
    begun = time.monotonic()
    error, result = None, None
    try:
        with tempfile.TemporaryDirectory(prefix="moebench-doctor-") as folder:
            error, result = _launch(ranks, Path(folder), deadline_s, on_gpus=on_gpus)
    except OSError as failed:
        error = f"the test could not be started: {failed}"
    if result is not None and result["wrong_words"]:
        error = f"{result['wrong_words']:.0f} words of an all-to-all did not come where they were sent"
    return CollectiveTest(
        ranks=ranks,
        device="cuda" if on_gpus else "cpu",
        collectives="nccl" if on_gpus else "gloo",
        passed=error is None,
        error=error,
        seconds=time.monotonic() - begun,
        latency_us=result["latency_us"] if result else None,
        bandwidth_gbps=result["bandwidth_gbps"] if result else None,
    )


def _launch(
    ranks: int, folder: Path, deadline_s: float, *, on_gpus: bool
) -> tuple[str | None, dict[str, float] | None]:
    """Why it failed, or what rank 0 wrote."""
    answer, log = folder / "result.json", folder / "torchrun.log"
    hidden = {} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""}
    with log.open("wb") as output:
        process = subprocess.Popen(
            torchrun.command(ranks, folder, "doctor", "moebench.launch.doctor_ranks", answer),
            env=torchrun.environment(ranks) | hidden,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return f"no answer within {deadline_s:g} s{_last_words(folder)}", None
        finally:
            _end(process)
    try:
        result: dict[str, float] = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"torchrun ended with exit status {status}{_last_words(folder)}", None
    return None, result


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ranks end with their torchrun, and torchrun on a signal."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(TERM_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(folder: Path) -> str:
    """The end of the first rank's error output that has one, else of torchrun's."""
    for path in [*sorted(folder.glob("ranks/*/attempt_0/*/stderr.log")), folder / "torchrun.log"]:
        try:
            lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            continue
        if lines:
            return ": " + " | ".join(lines[-LAST_LINES:])
    return ""
