"""What a fresh process of an arms run starts: one arm, on one rank. `python -m moebench.arms ORDER.json`."""

import math
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from moebench.arms.config import blocks_of_rank
from moebench.arms.data import Text
from moebench.arms.e2e_trainer import EndToEnd
from moebench.arms.loader import Batches, Loader
from moebench.arms.local_trainer import BlockLocal
from moebench.arms.results import CURVE_POINTS, ArmOrder, ArmResult, Failure, HeldoutPoint, Said, SeamTraffic
from moebench.arms.seams import Seams
from moebench.arms.traffic import rank_seam_bytes
from moebench.arms.train import Training
from moebench.arms.trainer import Trainer
from moebench.errors import MoebenchError
from moebench.rank.environment import environment
from moebench.rank.leaving import leave
from moebench.rank.lifeline import die_with_parent
from moebench.rank.memory import Peak, PeakMemory
from moebench.rank.placement import gpu_index
from moebench.rank.trace import write_atomically

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""A stage of a pipeline may wait while another one compiles."""


def main() -> None:
    parent = os.environ.get("MOEBENCH_AGENT_PID") or os.environ["MOEBENCH_SUPERVISOR_PID"]
    die_with_parent(int(parent), signal.SIGKILL)
    order = ArmOrder.model_validate_json(Path(sys.argv[1]).read_bytes())
    try:
        _train(order)
    except MoebenchError as error:
        failure = Failure(message=str(error), exit_code=error.exit_code)
        write_atomically(order.error_path, failure.model_dump_json())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)  # peers may be in a collective, which no orderly end could leave
    leave()


def _train(order: ArmOrder) -> None:
    began, started = time.perf_counter(), datetime.now(UTC)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device, group = _join(order, rank, ranks)
    say = _Teller(order.progress_path if rank == ranks - 1 else None)
    memory = PeakMemory(device)
    memory.reset()
    trainer = _trainer(order, device, Seams(rank, ranks))
    say(Said(phase="warm-up"))
    trainer.warm_up()
    training = Training(order, trainer, Text(order.text), say, group)
    resumed = training.resume()
    warmup_s = time.perf_counter() - began
    status, message = training.run()
    peak = memory.read()
    if status == "interrupted":
        training.save()
    say(Said(phase="evaluation", step=training.steps, elapsed_s=training.state.elapsed_s))
    final_loss = training.evaluate() if status != "diverged" and training.steps else None
    facts = _gather(trainer, peak, group)
    if rank < ranks - 1:
        return
    peaks = [peak_bytes for *_, peak_bytes in facts]
    result = ArmResult(
        arm=order.arm,
        steps=training.steps,
        tokens=training.tokens,
        elapsed_s=training.state.elapsed_s,
        tokens_per_s=training.tokens_per_s,
        final_loss=final_loss,
        final_ppl=None if final_loss is None else math.exp(final_loss),
        peak_vram_bytes=max(peaks) if min(peaks) >= 0 else None,
        loss_curve=_curve(training.losses),
        status=status,
        message=message,
        mode=order.mode,
        ranks=ranks,
        memory_source=peak.source,
        warmup_s=warmup_s,
        loader_s=trainer.loader.seconds,
        lag_steps=trainer.lag,
        heldout_curve=[HeldoutPoint.model_validate(point) for point in training.state.heldout],
        seams=_seam_traffic(order, training, facts),
        resumed=resumed,
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        environment=environment(device),
    )
    write_atomically(order.result_path, result.model_dump_json(indent=1))


class _Teller:
    """Writes lines of progress; a disk that is full costs them, not the run."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", encoding="utf-8", buffering=1)

    def __call__(self, said: Said) -> None:
        if self._file is not None:
            try:
                self._file.write(said.model_dump_json() + "\n")
            except OSError:
                self._file = None


def _join(order: ArmOrder, rank: int, ranks: int) -> tuple[torch.device, dist.ProcessGroup]:
    """The rank's device, and a process group on the host, for what is agreed between steps."""
    on_gpu = order.device == "cuda" or (order.device == "auto" and torch.cuda.is_available())
    device = torch.device("cpu")
    if on_gpu:
        device = torch.device("cuda", gpu_index(int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()))
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu and ranks > 1 else "gloo"
    if ranks == 1:
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1, timeout=COLLECTIVE_TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    group = dist.new_group(backend="gloo") if backend == "nccl" else dist.group.WORLD
    assert group is not None
    return device, group


def _trainer(order: ArmOrder, device: torch.device, seams: Seams) -> Trainer:
    preset, text = order.preset, Text(order.text)
    train = preset.train
    loader = Loader(Batches(text.train(), preset.model.seq, train.batch, train.seed), preset, device)
    blocks = blocks_of_rank(preset, seams.rank, seams.ranks)
    if order.arm == "e2e":
        return EndToEnd(preset, order.mode, device, seams, loader, blocks)
    rank_V = torch.from_numpy(text.ranks_by_frequency(preset.model.vocab))
    return BlockLocal(preset, order.mode, device, seams, loader, blocks, rank_V)


def _gather(trainer: Trainer, peak: Peak, group: dist.ProcessGroup) -> list[list[int]]:
    """Of every rank: bytes sent before and after, received before and after, and peak memory (-1: not known)."""
    ledger = trainer.seams.ledger
    peak_bytes = -1 if peak.allocated_bytes is None else peak.allocated_bytes
    mine = torch.tensor([*ledger.sent.values(), *ledger.received.values(), peak_bytes])
    found = [torch.empty_like(mine) for _ in range(trainer.seams.ranks)]
    dist.all_gather(found, mine, group=group)
    return [[int(value) for value in facts] for facts in found]


def _curve(losses: list[float]) -> list[float]:
    """Every max(1, steps // 40)-th step; those that are no number are left out."""
    return [loss for loss in losses[:: max(1, len(losses) // CURVE_POINTS)] if math.isfinite(loss)]


def _seam_traffic(order: ArmOrder, training: Training, facts: list[list[int]]) -> list[SeamTraffic]:
    """Both ends of a seam must have counted the same bytes."""
    ticks = training.state.ticks - training.first_tick
    modeled = rank_seam_bytes(order.preset.model, order.preset.train.batch, order.arm)
    seams = []
    for rank, (before, after) in enumerate(pairwise(facts)):
        sent, received = before[1] + after[0], before[3] + after[2]
        if sent != received:
            raise MoebenchError(f"ranks {rank} and {rank + 1}: {sent} bytes were sent and {received} received")
        per_step = sent / ticks if ticks else 0
        seams.append(
            SeamTraffic(
                ranks=[rank, rank + 1],
                measured_bytes_per_step=int(per_step) if float(per_step).is_integer() else per_step,
                modeled_bytes_per_step=modeled,
            )
        )
    return seams


if __name__ == "__main__":
    main()
