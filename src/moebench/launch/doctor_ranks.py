"""What the doctor's torchrun starts on every rank: all-to-alls that must be right, and how fast they are.

Started as `python -m moebench.launch.doctor_ranks RESULT.json`; rank 0 writes the result.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from moebench.rank.leaving import leave
from moebench.rank.lifeline import die_with_parent

SMALL_ROUNDS, LARGE_ROUNDS = 100, 6
SMALL_WORDS = 2
LARGE_BYTES = {"cpu": 2**24, "cuda": 2**28}
"""Of one rank's buffer, its own part included."""
TIMEOUT = timedelta(seconds=30)


def main() -> None:
    die_with_parent(int(os.environ.get("MOEBENCH_AGENT_PID", os.getppid())), signal.SIGKILL)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=TIMEOUT, device_id=device if on_gpus else None)
    wrong = _wrong_words(rank, ranks, device)
    latency_s = _time(SMALL_WORDS, SMALL_ROUNDS, ranks, device)
    words = LARGE_BYTES[device.type] // 8 // ranks
    large_s = _time(words, LARGE_ROUNDS, ranks, device)
    if rank == 0:
        result = {
            "wrong_words": wrong,
            "latency_us": latency_s * 1e6,
            "bandwidth_gbps": words * 8 * (ranks - 1) / large_s / 1e9,
        }
        Path(sys.argv[1]).write_text(json.dumps(result), encoding="utf-8")
    leave()


def _wrong_words(rank: int, ranks: int, device: torch.device) -> int:
    """Words that came from the wrong rank or not at all, over all ranks: each word names sender, receiver, place."""
    words = torch.arange(1000, device=device)
    peers = torch.arange(ranks, device=device).view(-1, 1)
    sent = (rank * ranks + peers) * 1000 + words
    received = torch.full_like(sent, -1)
    dist.all_to_all_single(received, sent)
    wrong = (received != (peers * ranks + rank) * 1000 + words).sum()
    dist.all_reduce(wrong)
    return int(wrong)


def _time(words: int, rounds: int, ranks: int, device: torch.device) -> float:
    """Median seconds of an all-to-all of int64 words to each rank, after two that are not timed."""
    sent = torch.zeros(ranks, words, dtype=torch.int64, device=device)
    received = torch.empty_like(sent)
    seconds = []
    for _ in range(rounds + 2):
        dist.barrier()
        begun = time.perf_counter()
        dist.all_to_all_single(received, sent)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return median(seconds[2:])


if __name__ == "__main__":
    main()
