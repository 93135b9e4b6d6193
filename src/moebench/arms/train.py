"""Trains one arm on one rank for its budget. The last rank leads: it has the loss, and its clock decides."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import IntFlag
from pathlib import Path
from statistics import fmean

import torch
import torch.distributed as dist
from torch import Tensor

from moebench.arms import checkpoint
from moebench.arms.clock import Clock
from moebench.arms.data import Text
from moebench.arms.evaluate import heldout_loss
from moebench.arms.results import ArmOrder, ArmStatus, Said
from moebench.arms.trainer import Trainer

POLL_S = 0.25
"""About how often the leader looks at losses and clock."""
SHOWN_STEPS = 20
"""Training losses that a line of progress is the mean of."""


class Do(IntFlag):
    """What all ranks do after the steps that they have just enqueued."""

    GO_ON = 0
    STOP = 1
    SAVE = 2
    EVALUATE = 4


@dataclass
class State:
    """What a checkpoint keeps beside tensors. `losses`: one a tick, as the last rank heard them."""

    ticks: int = 0
    elapsed_s: float = 0.0
    saved_at_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    heldout: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Chunk:
    """Losses of some enqueued steps, on their way to the host."""

    losses: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> list[float]:
        if self.event is not None:
            self.event.synchronize()
        return [float(loss) for loss in self.losses.tolist()]


class Training:
    """One run of one arm; `state` and what derives from it is complete after `run`."""

    def __init__(
        self, order: ArmOrder, trainer: Trainer, text: Text, tell: Callable[[Said], None], group: dist.ProcessGroup
    ) -> None:
        self.order, self.trainer, self.text = order, trainer, text
        self.state = State()
        self.first_tick = 0
        self._tell, self._group, self._config = tell, group, order.preset.train
        self._leads, self._leader = trainer.seams.is_last, trainer.seams.ranks - 1
        self._clock = Clock()
        self._pending: deque[Chunk] = deque()
        self._behind = 1 if trainer.device.type == "cuda" else 0
        self._heard_at_s = 0.0

    @property
    def steps(self) -> int:
        """Batches that have been through the last block."""
        return max(0, self.state.ticks - self.trainer.lag)

    @property
    def losses(self) -> list[float]:
        """Training loss of each of these batches; on the last rank."""
        return self.state.losses[self.trainer.lag :]

    @property
    def tokens(self) -> int:
        return self.steps * self._config.batch * self.order.preset.model.seq

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.state.elapsed_s if self.state.elapsed_s > 0 else 0.0

    def resume(self) -> bool:
        """Go on from the latest checkpoint if there is one. Raises UsageError where it is corrupt."""
        step = checkpoint.latest(self._checkpoints)
        if step is None:
            return False
        rank = self.trainer.seams.rank
        self.state = State(**checkpoint.restore(self._checkpoints, step, rank, self._tensors()))
        self.first_tick = self.state.ticks
        return True

    def run(self) -> tuple[ArmStatus, str | None]:
        """Train until the budget is used up, a stop is asked for or the loss is no number; which of them, and why."""
        self.trainer.finish()
        dist.barrier(self._group)
        self._clock = Clock(self.state.elapsed_s)
        do, ticks = self._agree(Do.GO_ON)
        while not do & Do.STOP:
            self._enqueue(ticks)
            self._hear(all_but=self._behind)
            self.state.elapsed_s = self._clock.now()
            do, ticks = self._agree(self._wanted())
            if do & (Do.SAVE | Do.EVALUATE):
                self._pause(do)
        self.trainer.finish()
        self.state.elapsed_s = self._clock.now()
        self._hear(all_but=0)
        return self._ending()

    def save(self) -> None:
        """A checkpoint of all ranks, which all of them must call."""
        rank = self.trainer.seams.rank
        self.state.saved_at_s = self.state.elapsed_s
        checkpoint.save(self._checkpoints, self.state.ticks, rank, self._tensors(), asdict(self.state))
        dist.barrier(self._group)
        if self._leads:
            checkpoint.commit(self._checkpoints, self.state.ticks)

    def evaluate(self) -> float | None:
        """Held-out loss; on the last rank. All ranks must call it."""
        seams, heldout = self.trainer.seams, self.text.heldout()
        at_most = self._config.eval_tokens
        return heldout_loss(self.trainer.stage, heldout, at_most, self.trainer.device, seams.rank, seams.ranks)

    def _enqueue(self, ticks: int) -> None:
        losses = torch.zeros(ticks, device=self.trainer.device)
        for i in range(ticks):
            self.trainer.step(self.state.ticks + i, self._progress(self.state.ticks + i))
            losses[i].copy_(self.trainer.loss)
        event = None
        if losses.is_cuda:
            losses = torch.empty(ticks, pin_memory=True).copy_(losses, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._pending.append(Chunk(losses, event))
        self.state.ticks += ticks

    def _hear(self, all_but: int) -> None:
        while len(self._pending) > all_but:
            self.state.losses += self._pending.popleft().wait()
            self._heard_at_s = self._clock.now()

    def _progress(self, tick: int) -> float:
        """Share of the run that is over, for the learning rate."""
        if self._config.max_steps is not None:
            return tick / (self._config.max_steps + self.trainer.lag)
        return self.state.elapsed_s / self._config.budget_seconds

    def _agree(self, wanted: Do) -> tuple[Do, int]:
        """The leader's will, and how many steps to enqueue next."""
        said = torch.tensor([int(wanted), self._next_ticks() if self._leads else 0])
        if self.trainer.seams.ranks > 1:
            dist.broadcast(said, self._leader, group=self._group)
        return Do(int(said[0])), int(said[1])

    def _next_ticks(self) -> int:
        """As many as take about POLL_S, and no more than are left."""
        heard = len(self.state.losses) - self.first_tick
        ticks = 1
        if heard:
            tick_s = self._heard_at_s / len(self.state.losses)
            left_s = self._config.budget_seconds - self.state.elapsed_s
            ticks = max(1, int(min(POLL_S, left_s) / tick_s))
        if self._config.max_steps is not None:
            ticks = min(ticks, self._config.max_steps + self.trainer.lag - self.state.ticks)
        return ticks

    def _wanted(self) -> Do:
        if not self._leads:
            return Do.GO_ON
        self._say("training")
        last = None if self._config.max_steps is None else self._config.max_steps + self.trainer.lag
        if (
            self._ending()[0] != "completed"
            or self.state.elapsed_s >= self._config.budget_seconds
            or self.state.ticks == last
        ):
            return Do.STOP
        do = Do.GO_ON
        if self.state.elapsed_s - self.state.saved_at_s >= self._config.checkpoint_seconds:
            do |= Do.SAVE
        points = self._config.eval_points + 1
        if self.state.elapsed_s >= self._config.budget_seconds * (len(self.state.heldout) + 1) / points:
            do |= Do.EVALUATE
        return do

    def _ending(self) -> tuple[ArmStatus, str | None]:
        bad = next((i for i, loss in enumerate(self.losses) if not math.isfinite(loss)), None)
        if bad is not None:
            return "diverged", f"the training loss was no number from step {bad + 1} on, and the arm was stopped"
        if self.order.stop_file.exists():
            return "interrupted", self.order.stop_file.read_text(encoding="utf-8")
        return "completed", None

    def _pause(self, do: Do) -> None:
        self.trainer.finish()
        with self._clock.paused():
            self.state.elapsed_s = self._clock.now()
            self._hear(all_but=0)
            if do & Do.EVALUATE:
                self._say("evaluation")
                loss = self.evaluate()
                if loss is not None:
                    self.state.heldout.append({"elapsed_s": self.state.elapsed_s, "steps": self.steps, "loss": loss})
            if do & Do.SAVE:
                self._say("checkpoint")
                self.save()

    def _say(self, phase: str) -> None:
        if not self._leads:
            return
        recent = [loss for loss in self.losses[-SHOWN_STEPS:] if math.isfinite(loss)]
        self._tell(
            Said(
                phase=phase,
                step=self.steps,
                elapsed_s=self.state.elapsed_s,
                left_s=max(0.0, self._config.budget_seconds - self.state.elapsed_s),
                tokens_per_s=self.tokens_per_s,
                loss=fmean(recent) if recent else None,
            )
        )

    @property
    def _checkpoints(self) -> Path:
        return self.order.folder / "checkpoint"

    def _tensors(self) -> dict[str, Tensor]:
        moments = {f"optimizer.{i}": tensor for i, tensor in enumerate(self.trainer.optimizer.state())}
        return dict(self.trainer.state()) | moments
