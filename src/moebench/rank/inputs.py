"""Inputs and weights of a case, from its seed alone: the same on every machine of one device kind and any ep."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moebench.backends.protocol import LayerWeights
from moebench.cases.case import Case
from moebench.cases.routing import Ids, route

_X, _SCORES, _EXPERT, _SHARED, _GRAD = range(5)


def _generator(device: torch.device, *key: int) -> torch.Generator:
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(seed)


def _normal(device: torch.device, shape: tuple[int, ...], scale: float, *key: int) -> Tensor:
    out = torch.empty(shape, dtype=torch.float32, device=device)
    return out.normal_(generator=_generator(device, *key)).mul_(scale).bfloat16()


@dataclass(frozen=True)
class Inputs:
    """What enters the timed region on one rank. x and the output gradient are BF16, scores positive FP32."""

    ids_PTK: list[Ids]
    ids_TK: list[Tensor]
    x_TD: Tensor
    scores_TK: list[Tensor]
    dy_TD: Tensor | None
    weights: list[LayerWeights]


def make_routing(case: Case) -> list[Ids]:
    s, seed = case.shape, case.measure.seed
    return [
        route(s.T, s.K, s.E, case.ep, imbalance, seed, layer) for layer, imbalance in enumerate(case.layer_imbalances)
    ]


def make_inputs(case: Case, rank: int, device: torch.device, ids_PTK: list[Ids]) -> Inputs:
    """x and dy differ by rank, scores by rank and layer, weights by layer and expert; shared weights are replicated."""
    s, seed = case.shape, case.measure.seed
    scores = []
    for layer in range(case.layers):
        raw_TK = torch.empty((s.T, s.K), device=device)
        raw_TK.uniform_(0.1, 1.0, generator=_generator(device, seed, _SCORES, layer, rank))
        scores.append(raw_TK / raw_TK.sum(dim=1, keepdim=True))
    inputs = Inputs(
        ids_PTK=ids_PTK,
        ids_TK=[torch.from_numpy(ids[rank].astype(np.int64)).to(device) for ids in ids_PTK],
        x_TD=_normal(device, (s.T, s.D), 1.0, seed, _X, rank),
        scores_TK=scores,
        dy_TD=_normal(device, (s.T, s.D), s.D**-0.5, seed, _GRAD, rank) if case.training else None,
        weights=[_layer_weights(case, layer, rank, device) for layer in range(case.layers)],
    )
    if case.training:
        inputs.x_TD.requires_grad_()
        for scores_TK in inputs.scores_TK:
            scores_TK.requires_grad_()
        for weights in inputs.weights:
            for parameter in weights.parameters():
                parameter.requires_grad_()
    return inputs


@torch.no_grad()
def renew_x(inputs: Inputs, case: Case, rank: int) -> None:
    """Other values in the same x: a backend that answers from a cache is then wrong."""
    x_TD = inputs.x_TD
    x_TD.copy_(_normal(x_TD.device, tuple(x_TD.shape), 1.0, case.measure.seed, _X, rank, 1))


def _layer_weights(case: Case, layer: int, rank: int, device: torch.device) -> LayerWeights:
    s, seed, e = case.shape, case.measure.seed, case.experts_per_rank
    experts = range(rank * e, (rank + 1) * e)

    def stack(make: Callable[[int], Tensor], rows: int, columns: int) -> Tensor:
        out = torch.empty((e, rows, columns), dtype=torch.bfloat16, device=device)
        for local, expert in enumerate(experts):
            out[local] = make(expert)
        return out

    return LayerWeights(
        w13_eGD=stack(lambda x: _normal(device, (2 * s.F, s.D), s.D**-0.5, seed, _EXPERT, layer, x, 13), 2 * s.F, s.D),
        w2_eDF=stack(lambda x: _normal(device, (s.D, s.F), s.F**-0.5, seed, _EXPERT, layer, x, 2), s.D, s.F),
        shared13_GD=_normal(device, (2 * s.S * s.F, s.D), s.D**-0.5, seed, _SHARED, layer, 13),
        shared2_DF=_normal(device, (s.D, s.S * s.F), s.F**-0.5, seed, _SHARED, layer, 2),
    )
