from typing import get_args

import pytest
import torch
from tests.arms.small import MODEL, TRAIN, preset, ranks_by_frequency

from moebench.arms.config import ObjectiveName, Preset
from moebench.arms.local import LocalStage
from moebench.arms.objectives import sampled_softmax, token_classes

UNITS = 4
Gradients = dict[str, torch.Tensor]


def stage(chosen: Preset, blocks: range = range(UNITS)) -> LocalStage:
    local = LocalStage(chosen, blocks, ranks_by_frequency())
    local.initialise(seed=0)
    return local


def inputs(units: int = UNITS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (units, TRAIN["batch"], MODEL["seq"])
    x_UBSD = torch.randn(*shape, MODEL["dim"], generator=generator).bfloat16()
    tokens_UBT = torch.randint(MODEL["vocab"], (*shape[:2], shape[2] + 1), generator=generator)
    return x_UBSD, tokens_UBT


def losses(local: LocalStage, x_UBSD: torch.Tensor, tokens_UBT: torch.Tensor) -> torch.Tensor:
    """Of all units, group by group."""
    positions, sampled = torch.arange(7), torch.arange(100, 130)
    return torch.cat([
        local.group_loss(
            index, x_UBSD[group.units.start : group.units.stop], tokens_UBT[group.units.start : group.units.stop],
            positions, sampled,
        )[0]
        for index, group in enumerate(local.groups)
    ])  # fmt: skip


VARIANTS = [
    *({"objective": name} for name in get_args(ObjectiveName)),
    {"positions": 0.1},
    {"units_at_once": 2},
    {"final_sampled": 30},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_no_gradient_of_a_units_loss_reaches_another_unit(variant):
    local = stage(preset(local=variant))
    loss_U = losses(local, *inputs())
    assert loss_U.shape == (UNITS,)
    for unit in range(UNITS):
        local.zero_grad()
        loss_U[unit].backward(retain_graph=True)
        for group in local.groups:
            for parameter in group.chain[0].parameters():
                touched = parameter.grad is not None and parameter.grad.abs().flatten(1).sum(1) > 0
                reached = [u for i, u in enumerate(group.units) if touched is not False and touched[i]]
                assert reached in ([unit], []), f"unit {unit}"
        qkv = local.groups[unit // len(local.groups[0].units)].chain[0].qkv.grad
        assert qkv is not None
        ends = {name: p.grad is not None and bool(p.grad.any()) for name, p in local.ends.named_parameters()}
        assert ends == {"embedding": unit == 0, "norm": unit == UNITS - 1, "head": unit == UNITS - 1}


def test_gradients_of_a_block_do_not_depend_on_later_blocks():
    gradients = []
    for changed in (False, True):
        local = stage(preset())
        if changed:
            for parameter in local.groups[0].chain[0].parameters():
                parameter.data[2:] += 0.3
            local.ends.head.data += 0.3
        losses(local, *inputs()).sum().backward()
        gradients.append(local.groups[0].chain[0].down.grad)
    assert torch.equal(gradients[0][:2], gradients[1][:2])
    assert not torch.equal(gradients[0][2:], gradients[1][2:])


def test_inside_a_unit_of_several_blocks_gradients_do_cross():
    local = stage(preset(local={"unit_blocks": 2}))
    x, tokens = inputs(2)
    losses(local, x, tokens)[0].backward()
    first, second = local.groups[0].chain
    assert first.qkv.grad[0].any()
    assert second.qkv.grad[0].any()
    assert not first.qkv.grad[1].any()


def test_how_many_units_are_computed_at_once_changes_nothing():
    whole, pairs = (losses(stage(preset(local={"units_at_once": size})), *inputs()) for size in (None, 2))
    torch.testing.assert_close(whole, pairs)


def test_the_model_that_is_evaluated_is_the_one_that_is_trained():
    local = stage(preset())
    model = local.as_stage()
    tokens = inputs()[1][0]
    before = model.loss(tokens[:, :-1], tokens[:, 1:])
    for parameter in local.groups[0].chain[0].parameters():
        parameter.data += 0.1
    after = model.loss(tokens[:, :-1], tokens[:, 1:])
    assert before != after
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in stage(preset()).as_stage().named_parameters()
    ]


def test_frequent_tokens_are_classes_of_their_own_and_rarer_ones_share_the_other_half():
    assert token_classes(torch.arange(14), 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5]


def sampled(sampled_ids: torch.Tensor, others: int = 200) -> torch.Tensor:
    torch.manual_seed(0)
    h, head, target = torch.randn(9, 16), torch.randn(300, 16) / 4, torch.randint(300, (9,))
    frequent = torch.arange(100)
    full = torch.nn.functional.cross_entropy(h @ head.T, target)
    return torch.stack([sampled_softmax(h, head, target, frequent, sampled_ids, others), full])


def test_a_sample_of_everything_is_the_whole_softmax():
    estimate, full = sampled(torch.arange(100, 300))
    torch.testing.assert_close(estimate, full)


def test_a_sampled_softmax_estimates_the_whole_one():
    generator = torch.Generator().manual_seed(1)
    found = torch.stack([sampled(torch.randint(100, 300, (50,), generator=generator)) for _ in range(300)])
    estimate, full = found.mean(0)
    assert abs(estimate - full) < 0.02
    assert found[:, 0].std() > 0.01
