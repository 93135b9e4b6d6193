"""A layer that takes a known time on any machine, so that what moebench says of it can be held against the truth.

It passes every check as any backend does: each rank holds all experts, computes y of its own tokens as the torch
strategy of one rank does, and then waits until its time is up, counted from the start of the iteration's first layer.
Nothing is exchanged inside an iteration but what the pace asks for, so a slow rank holds up no other: ranks that meet
in a collective all take the slowest one's time, and hide their skew. The experts' gradients are summed over ranks when
they are delivered, which is not timed.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from moebench.backends.autograd import apply
from moebench.backends.pace import Pace
from moebench.backends.protocol import Backend, LayerWeights, Setup
from moebench.backends.timers import Timer, make_timer
from moebench.backends.torch_ep import TorchBackend
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs


class Spin(Backend):
    """F / 8 ms forward and F / 4 ms backward in each layer, as `pace` changes that."""

    name = "spin"
    pipelines = TorchBackend.pipelines
    pace: ClassVar[Pace] = Pace()

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._experts = _all_experts(setup)
        alone = setup.case.model_copy(update={"ep": 1})
        self._work = TorchBackend(replace(setup, case=alone, exchange=Exchange(0, 1), weights=self._experts))
        self._payload = torch.zeros(setup.case.ep, self.pace.sent_bytes, dtype=torch.uint8, device=setup.device)
        self.timer = make_timer(setup.device)
        self._iteration = -1

    def layer(self, l: int, x_TD: Tensor, ids_TK: Tensor, scores_TK: Tensor) -> Tensor:
        if l == 0:
            self.timer.start()
            self._iteration += 1
            self._clear_gradients()
        case, pace = self.setup.case, self.pace
        if pace.sent_bytes:
            self.setup.exchange.all_to_all("payload", self._payload, [1] * case.ep, [1] * case.ep).wait()
        y_TD = self._work.layer(l, apply(_BackwardWaits, x_TD, self.timer, pace.backward_ms(case)), ids_TK, scores_TK)
        self.timer.wait(pace.forward_ms(case, self.setup.rank, self._iteration))
        return y_TD

    def deliver_gradients(self) -> None:
        """Each rank has gradients of all experts, from its own tokens; the sum over ranks goes to the expert's rank."""
        if not self.setup.case.training:
            return
        P = self.setup.case.ep
        for own, every in zip(self.setup.weights, self._experts, strict=True):
            for mine, of_all in ((own.w13_eGD, every.w13_eGD), (own.w2_eDF, every.w2_eDF)):
                assert of_all.grad is not None
                part = self.setup.exchange.all_to_all("gradients", of_all.grad.view(P, -1), [1] * P, [1] * P)
                mine.grad = part.wait().float().sum(0).to(mine.dtype).view(mine.shape)

    def note(self) -> Any:
        return self.pace

    def _clear_gradients(self) -> None:
        for every in self._experts:
            every.w13_eGD.grad = every.w2_eDF.grad = None


class SlowerSpin(Spin):
    """The same cases 5 % slower, under the same ids: a regression that `compare` has to find."""

    pace = Pace(factor=1.05)


@dataclass(frozen=True)
class Told:
    """What a spin that is itself under test leaves in its trace."""

    pace: Pace
    took_ms: list[float]
    """By the timer's own clock, of every iteration since set-up: forward of each layer, then backward of each."""


class SteadySpin(Spin):
    name = "spin_steady"

    def note(self) -> Told:
        return Told(self.pace, self.timer.took_ms())


class SkewedSpin(SteadySpin):
    name = "spin_skewed"
    pace = Pace(skew_ms=2.0)


class DriftingSpin(SteadySpin):
    name = "spin_drifting"
    pace = Pace(drift_ms=0.01)


class OutlyingSpin(SteadySpin):
    name = "spin_outlying"
    pace = Pace(outlier_every=5, outlier_ms=1.0)


class SendingSpin(SteadySpin):
    name = "spin_sending"
    pace = Pace(sent_bytes=2**20)


def _all_experts(setup: Setup) -> list[LayerWeights]:
    """Every rank's experts, made from the seed as they made them. Shared experts are this rank's own tensors."""
    case = setup.case
    of_ranks = [
        setup.weights if rank == setup.rank else make_inputs(case, rank, setup.device, setup.ids_PTK).weights
        for rank in range(case.ep)
    ]
    return [
        replace(
            own,
            w13_eGD=torch.cat([weights[l].w13_eGD.detach() for weights in of_ranks]).requires_grad_(case.training),
            w2_eDF=torch.cat([weights[l].w2_eDF.detach() for weights in of_ranks]).requires_grad_(case.training),
        )
        for l, own in enumerate(setup.weights)
    ]


class _BackwardWaits(torch.autograd.Function):
    """At the head of a layer, so that its backward is the last of the layer's: that waits until its time is up."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, timer: Timer, ms: float) -> Tensor:
        ctx.timer, ctx.ms = timer, ms
        return x_TD.view_as(x_TD)

    @staticmethod
    def backward(ctx: Any, *dx: Tensor) -> tuple[Tensor, None, None]:
        ctx.timer.wait(ctx.ms)
        return dx[0], None, None
