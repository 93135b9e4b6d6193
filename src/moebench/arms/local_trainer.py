"""The local arm's steps: all units of a rank in one tick; over ranks no stage waits for another one's backward."""

from collections.abc import Mapping

import torch
from torch import Tensor

from moebench.arms.config import Mode, Preset
from moebench.arms.loader import Loader
from moebench.arms.local import Inputs, LocalStage
from moebench.arms.optimizer import Optimizer
from moebench.arms.precision import autocast
from moebench.arms.seams import Arrival, Seams
from moebench.arms.trainer import Trainer


class BlockLocal(Trainer):
    def __init__(
        self,
        preset: Preset,
        mode: Mode,
        device: torch.device,
        seams: Seams,
        loader: Loader,
        blocks: range,
        rank_V: Tensor,
    ) -> None:
        super().__init__(preset, mode, device, seams, loader)
        self.local = LocalStage(preset, blocks, rank_V)
        self.local.initialise(preset.train.seed)
        self.local.to(device)
        self.stage = self.local.as_stage()
        self.optimizer = Optimizer([self.local], preset.train, captured=mode == "graphed")
        self.lag = preset.units - 1
        units, batch, seq, dim = len(self.local.units), preset.train.batch, preset.model.seq, preset.model.dim
        self._stream = torch.zeros(units + 1, batch, seq, dim, dtype=torch.bfloat16, device=device)
        """Input of each unit, and last of all the output of the last one."""
        self._inputs: Inputs | None = None
        self._arrival: Arrival | None = None
        self._group_loss = self.compiled(self.local.group_loss)

    def initialise(self) -> None:
        self.local.initialise(self.preset.train.seed)
        self._stream.zero_()

    def load(self, step: int) -> None:
        loaded = self.loader.tick(step, self.local.units)
        if self._inputs is None:
            self._inputs = loaded
            return
        for name, into in vars(self._inputs).items():
            into.copy_(getattr(loaded, name), non_blocking=True)

    def state(self) -> Mapping[str, Tensor]:
        return dict(self.local.named_parameters()) | {"stream": self._stream}

    def compute(self) -> None:
        """Later groups first: each reads what the one before it made a tick ago."""
        self._receive()
        for index in reversed(range(len(self.local.groups))):
            self._train_group(index)
        if not self.seams.is_last:
            self.seams.flush()
            self.seams.send("after", self._stream[-1])
        self.optimizer.step()

    def finish(self) -> None:
        self._take()
        super().finish()

    def _train_group(self, index: int) -> None:
        assert self._inputs is not None
        units = self.local.groups[index].units
        here = slice(units.start - self.local.units.start, units.stop - self.local.units.start)
        given = self._inputs
        with autocast(self.device):
            loss_U, y_UBSD = self._group_loss(
                index, self._stream[here], given.tokens_UBT[here], given.positions_P, given.sampled_K
            )
        (loss_U * given.active_U[here]).sum().backward()
        self._stream[here.start + 1 : here.stop + 1].copy_(y_UBSD.detach())
        if units.stop == self.preset.units:
            self.loss.copy_(loss_U.detach()[-1])

    def _receive(self) -> None:
        """Take what the rank before made a tick ago, and ask for what it is about to make."""
        self._take()
        if not self.seams.is_first:
            self._arrival = self.seams.receive("before", tuple(self._stream.shape[1:]), self.device)

    def _take(self) -> None:
        if self._arrival is not None:
            self._stream[0].copy_(self._arrival.wait())
            self._arrival = None
