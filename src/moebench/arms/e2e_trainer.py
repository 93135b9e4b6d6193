"""The end-to-end arm: one loss, gradients through all blocks; over ranks a pipeline of microbatches (GPipe)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from moebench.arms.config import Mode, Preset
from moebench.arms.loader import Loader
from moebench.arms.model import Stage
from moebench.arms.optimizer import Optimizer
from moebench.arms.precision import autocast
from moebench.arms.seams import Seams
from moebench.arms.trainer import Trainer


class EndToEnd(Trainer):
    def __init__(
        self, preset: Preset, mode: Mode, device: torch.device, seams: Seams, loader: Loader, blocks: range
    ) -> None:
        super().__init__(preset, mode, device, seams, loader)
        self.stage = Stage(preset.model, blocks)
        self.stage.initialise(preset.train.seed)
        self.stage.to(device)
        self.optimizer = Optimizer([self.stage], preset.train, captured=mode == "graphed")
        batch, seq = preset.train.batch, preset.model.seq
        self._tokens_BT = torch.zeros(batch, seq + 1, dtype=torch.int32, device=device)
        self._micro = batch // seams.ranks if batch % seams.ranks == 0 else batch
        self._forward = self.compiled(self.stage.forward)
        self._loss = self.compiled(self.stage.loss)

    def initialise(self) -> None:
        self.stage.initialise(self.preset.train.seed)

    def load(self, step: int) -> None:
        self._tokens_BT.copy_(self.loader.batch(step), non_blocking=True)

    def state(self) -> Mapping[str, Tensor]:
        return dict(self.stage.named_parameters())

    def compute(self) -> None:
        """All microbatches forward, then all backward; the loss is the mean over the batch."""
        tokens = self._tokens_BT.split(self._micro)
        flights = [self._send_forward(tokens_bT) for tokens_bT in tokens]
        for x, y in reversed(flights):
            self._send_backward(x, y, len(tokens))
        self.seams.flush()
        if self.seams.is_last:
            self.loss.copy_(torch.stack([y.detach() for _, y in flights]).mean())
        self.optimizer.step()

    def _send_forward(self, tokens_bT: Tensor) -> tuple[Tensor | None, Tensor]:
        """(the stage's input if it has a gradient to give back, its output: a loss on the last rank)."""
        ids_bS, received = tokens_bT[:, :-1], None
        x = ids_bS
        if not self.seams.is_first:
            shape = (*ids_bS.shape, self.preset.model.dim)
            x = received = self.seams.receive("before", shape, self.device).wait().requires_grad_()
        with autocast(self.device):
            y = self._loss(x, tokens_bT[:, 1:]) if self.seams.is_last else self._forward(x)
        if not self.seams.is_last:
            self.seams.send("after", y)
        return received, y

    def _send_backward(self, x: Tensor | None, y: Tensor, microbatches: int) -> None:
        if self.seams.is_last:
            (y / microbatches).backward()
        else:
            y.backward(self.seams.receive("after", tuple(y.shape), self.device).wait())
        if x is not None and x.grad is not None:
            self.seams.send("before", x.grad)
