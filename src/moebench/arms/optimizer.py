"""The optimizer of both arms."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from moebench.arms.config import TrainConfig
from moebench.arms.schedule import share_of_peak


class Optimizer:
    """AdamW over the parameters of a rank; its rate can change under a captured graph."""

    def __init__(self, modules: Iterable[nn.Module], config: TrainConfig, *, captured: bool) -> None:
        self.config = config
        named = {name: p for module in modules for name, p in module.named_parameters()}
        decayed = [p for name, p in named.items() if not name.endswith(("norm", "bias"))]
        kept = [p for name, p in named.items() if name.endswith(("norm", "bias"))]
        rate: float | Tensor = config.learning_rate
        if captured:
            rate = torch.tensor(rate, device=decayed[0].device)
        self._adam = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}],
            lr=rate,
            betas=(config.beta1, config.beta2),
            fused=True,
            capturable=captured,
        )

    def set_rate(self, step: int, progress: float) -> None:
        rate = self.config.learning_rate * share_of_peak(self.config, step, progress)
        for group in self._adam.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self) -> None:
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)

    def state(self) -> list[Tensor]:
        """Step counts and moments of every parameter that has been updated, in order."""
        return [
            value
            for group in self._adam.param_groups
            for parameter in group["params"]
            for value in self._adam.state.get(parameter, {}).values()
        ]

    def forget(self) -> None:
        """As if no step had been made; tensors keep their addresses."""
        for value in self.state():
            value.zero_()
