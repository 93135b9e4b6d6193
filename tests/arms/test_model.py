import torch
from tests.arms.small import MODEL, preset

from moebench.arms.model import Block, Stage, initial_blocks, rope_tables

CONFIG = preset().model


def made(blocks: range) -> list[Block]:
    found = []
    for weights in initial_blocks(CONFIG, 3, blocks):
        block = Block(CONFIG)
        block.load_state_dict(weights)
        found.append(block)
    return found


def stage(blocks: range = range(4)) -> Stage:
    whole = Stage(CONFIG, blocks)
    whole.initialise(seed=0)
    return whole


def ids() -> torch.Tensor:
    return torch.randint(MODEL["vocab"], (2, MODEL["seq"]), generator=torch.Generator().manual_seed(0))


def test_a_stack_computes_what_its_blocks_compute_one_by_one():
    blocks = made(range(3))
    stack = Block(CONFIG, stack=3)
    for name, parameter in stack.named_parameters():
        noise = 0.1 * torch.randn_like(parameter)
        parameter.data.copy_(torch.stack([getattr(block, name).data for block in blocks]) + noise)
        for i, block in enumerate(blocks):
            getattr(block, name).data.copy_(parameter.data[i])
    x_UBSD = torch.randn(3, 2, MODEL["seq"], MODEL["dim"]).bfloat16()
    rope = rope_tables(CONFIG)
    expected = torch.stack([block(x, rope) for block, x in zip(blocks, x_UBSD, strict=True)])
    torch.testing.assert_close(stack(x_UBSD, rope), expected)


def test_a_position_sees_earlier_ones_only():
    model, tokens = stage(), ids()
    later = tokens.clone()
    later[:, 6:] = 7
    x, y = model(tokens), model(later)
    assert torch.equal(x[:, :6], y[:, :6])
    assert not torch.equal(x[:, 6:], y[:, 6:])


def test_a_position_sees_where_earlier_ones_are():
    model, tokens = stage(range(1)), ids()
    for weights in (model.ends.embedding, model.blocks[0].qkv, model.blocks[0].out):
        weights.data *= 50
    swapped = tokens[:, [1, 0, *range(2, MODEL["seq"])]]
    assert (model(tokens) - model(swapped))[:, 6].abs().max() > 0.1


def test_initial_weights_do_not_depend_on_how_blocks_are_shared_out():
    whole = dict(stage().named_parameters())
    parts = [stage(range(2)), stage(range(2, 4))]
    assert torch.equal(parts[0].ends.embedding, whole["ends.embedding"])
    assert torch.equal(parts[1].ends.head, whole["ends.head"])
    assert torch.equal(parts[1].blocks[0].qkv, stage().blocks[2].qkv)
    assert not torch.equal(parts[1].blocks[0].qkv, parts[0].blocks[0].qkv)


def test_the_stream_between_blocks_has_two_bytes_an_element():
    assert stage(range(2))(ids()).element_size() == 2


def test_an_untrained_model_gives_the_loss_of_a_guess():
    assert abs(stage().loss(ids(), ids()).item() - torch.tensor(float(MODEL["vocab"])).log().item()) < 0.1
