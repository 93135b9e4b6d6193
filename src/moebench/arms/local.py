"""The local arm: every unit (a block, or several) is trained on a loss of its own, and no gradient leaves it.

Units do not wait for each other: in one tick unit i trains on batch t - i, reading what unit i - 1 made of that batch a
tick ago. All units of a rank are therefore one batched computation, and each sees every batch once, in order, with the
weights it would have if units were trained one after the other.

Shapes: U units, B batch, S sequence, D dim, P positions of a unit's loss, K sampled tokens, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moebench.arms.config import Preset
from moebench.arms.model import Block, Ends, Stage, initial_blocks, initial_table, rms_norm, rope_tables
from moebench.arms.objectives import OBJECTIVES, sampled_softmax


@dataclass(frozen=True)
class Inputs:
    """Of one tick, for the units of this rank; on the device."""

    tokens_UBT: Tensor
    """T = S + 1 token ids of each sequence of each unit's batch."""
    active_U: Tensor
    """1, or 0 for units that no batch has reached yet."""
    positions_P: Tensor
    """The positions, of B*S, that the units' losses look at."""
    sampled_K: Tensor
    """Ranks by frequency of the tokens that the last unit's loss samples."""


class Group(nn.Module):
    """Consecutive units that are computed as one batch: the j-th block of each of them is in the j-th stack."""

    def __init__(self, preset: Preset, units: range) -> None:
        super().__init__()
        self.units, self.is_first, self.is_last = units, units.start == 0, units.stop == preset.units
        self.chain = [Block(preset.model, len(units)) for _ in range(preset.local.unit_blocks)]
        self._registered = nn.ModuleList(self.chain)
        objective = OBJECTIVES[preset.local.objective]
        supervised = len(units) - self.is_last
        self.objective = objective(preset.local, preset.model.dim, supervised) if supervised else None

    def initialise(self, preset: Preset, token_V: Tensor) -> None:
        seed, size = preset.train.seed, len(self.chain)
        with torch.no_grad():
            for i, unit in enumerate(self.units):
                blocks = range(unit * size, (unit + 1) * size)
                for stack, weights in zip(self.chain, initial_blocks(preset.model, seed, blocks), strict=True):
                    for name, parameter in stack.named_parameters():
                        parameter[i].copy_(weights[name])
            if self.objective is not None and any(True for _ in self.objective.parameters()):
                head_VD = initial_table(preset.model, seed, "head")
                for parameter in self.objective.parameters():
                    parameter.copy_(head_VD[token_V[: parameter.shape[-2]].cpu()])


class LocalStage(nn.Module):
    """The units of one rank. `rank_V` orders the vocabulary by frequency in the training text, 0 the most frequent."""

    def __init__(self, preset: Preset, blocks: range, rank_V: Tensor) -> None:
        super().__init__()
        self.preset = preset
        size = preset.local.unit_blocks
        self.units = range(blocks.start // size, blocks.stop // size)
        at_once = preset.local.units_at_once or len(self.units)
        self.ends = Ends(preset.model, first=blocks.start == 0, last=blocks.stop == preset.model.n_blocks)
        self.groups = [
            Group(preset, self.units[start : start + at_once]) for start in range(0, len(self.units), at_once)
        ]
        self._registered = nn.ModuleList(self.groups)
        self.rank_V: Tensor
        self.token_V: Tensor
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("rank_V", rank_V, persistent=False)
        self.register_buffer("token_V", rank_V.argsort(), persistent=False)
        for name, table in zip(("cos", "sin"), rope_tables(preset.model), strict=True):
            self.register_buffer(name, table, persistent=False)

    def initialise(self, seed: int) -> None:
        self.ends.initialise(self.preset.model, seed)
        for group in self.groups:
            group.initialise(self.preset, self.token_V)

    def group_loss(
        self, index: int, x_UBSD: Tensor, tokens_UBT: Tensor, positions_P: Tensor, sampled_K: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean loss of each unit of a group [U], and the units' outputs, given the outputs of the units before them.

        The input of the model's first unit is its own embedding of the tokens, whatever x holds there.
        """
        group, tokens_UBS = self.groups[index], tokens_UBT[..., :-1]
        if group.is_first:
            x_UBSD = torch.cat((self.ends.embed(tokens_UBS[:1]), x_UBSD[1:]))
        for stack in group.chain:
            x_UBSD = stack(x_UBSD, (self.cos, self.sin))
        y_UND, target_UN = x_UBSD.flatten(1, 2), tokens_UBT[..., 1:].flatten(1)
        losses = []
        if group.objective is not None:
            own_y_UPD, own_target_UP = y_UND[: len(y_UND) - group.is_last], target_UN[: len(y_UND) - group.is_last]
            if self.preset.local.positions < 1:
                own_y_UPD = own_y_UPD[:, positions_P]
                own_target_UP = own_target_UP[:, positions_P]
            losses.append(group.objective(own_y_UPD, own_target_UP, self.rank_V, self.token_V, self.ends.head))
        if group.is_last:
            losses.append(self._last_loss(y_UND[-1], target_UN[-1], sampled_K)[None])
        return torch.cat(losses), x_UBSD

    def _last_loss(self, y_ND: Tensor, target_N: Tensor, sampled_K: Tensor) -> Tensor:
        config, ends = self.preset.local, self.ends
        if not config.final_sampled:
            return ends.loss(y_ND, target_N)
        assert ends.head is not None
        frequent = self.token_V[: config.final_frequent]
        others = self.preset.model.vocab - config.final_frequent
        h_ND = rms_norm(y_ND, ends.norm)
        return sampled_softmax(h_ND, ends.head, target_N, frequent, self.token_V[sampled_K], others)

    def as_stage(self) -> Stage:
        """The model's stage with these weights, not copies of them: what is evaluated."""
        size = self.preset.local.unit_blocks
        blocks = range(self.units.start * size, self.units.stop * size)
        with torch.device("meta"):
            stage = Stage(self.preset.model, blocks)
        stage.ends, stage.cos, stage.sin = self.ends, self.cos, self.sin
        for block, weights in zip(stage.blocks, self._weights_of_blocks(), strict=True):
            for name, weight in weights.items():
                setattr(block, name, nn.Parameter(weight, requires_grad=False))
        return stage

    def _weights_of_blocks(self) -> Iterator[dict[str, Tensor]]:
        for group in self.groups:
            for i in range(len(group.units)):
                for stack in group.chain:
                    yield {name: parameter.detach()[i] for name, parameter in stack.named_parameters()}
