"""The ledger: bytes to other ranks only, by kind, whatever travels."""

import torch
from tests.backends.battery.world import KINDS, SHAPE, World, expect, same

from moebench.cases.case import Mode
from moebench.rank.exchange import Exchange

DTYPES = (
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
    torch.uint8,
    torch.bfloat16,
    torch.float32,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)


def every_type_travels_as_its_bytes(world: World) -> None:
    """Rank p sends q+1 rows to rank q; each row says where it comes from."""
    exchange = Exchange(world.rank, world.size)
    send_rows = [q + 1 for q in range(world.size)]
    receive_rows = [world.rank + 1] * world.size
    for dtype in DTYPES:
        wire = torch.full((sum(send_rows), 3, 2), world.rank, dtype=torch.uint8).repeat_interleave(dtype.itemsize, 2)
        got = exchange.all_to_all("test", wire.view(dtype), send_rows, receive_rows).wait()
        same((tuple(got.shape), got.dtype), ((sum(receive_rows), 3, 2), dtype), f"what came of {dtype}")
        sources = torch.arange(world.size, dtype=torch.uint8).repeat_interleave(world.rank + 1)
        expect(bool((got.view(torch.uint8) == sources.view(-1, 1, 1)).all()), f"{dtype} rows are of other ranks")


def empty_tensors_and_empty_splits_travel(world: World) -> None:
    exchange, none = Exchange(world.rank, world.size), [0] * world.size
    for dtype in DTYPES:
        got = exchange.all_to_all("test", torch.zeros((0, 4), dtype=dtype), none, none).wait()
        same((tuple(got.shape), got.dtype), ((0, 4), dtype))
    only_to_0 = [5, *none[1:]]
    from_all = [5] * world.size if world.rank == 0 else none
    got = exchange.all_to_all("test", torch.full((5,), world.rank), only_to_0, from_all).wait()
    same(got.tolist(), [p for p in range(world.size) for _ in range(from_all[p])])


def rows_that_are_not_contiguous_travel_in_order(world: World) -> None:
    exchange, one = Exchange(world.rank, world.size), [1] * world.size
    x = torch.arange(2 * world.size).view(2, world.size).t()
    got = exchange.all_to_all("test", x, one, one).wait()
    same(got.tolist(), [[world.rank, world.size + world.rank]] * world.size)


def gathered_tensors_are_in_rank_order(world: World) -> None:
    exchange = Exchange(world.rank, world.size)
    got = exchange.all_gather("ids", torch.full((2, 3), world.rank, dtype=torch.int16)).wait()
    same((tuple(got.shape), got[:, 0, 0].tolist()), ((world.size, 2, 3), list(range(world.size))))
    others = world.size - 1
    same((exchange.ledger.tx_bytes["ids"], exchange.ledger.rx_bytes["ids"]), (12 * others, 12 * others))


def local_rows_are_not_counted(world: World) -> None:
    exchange = Exchange(world.rank, world.size)
    send_rows = [3] * world.size
    exchange.all_to_all("rows", torch.zeros(3 * world.size, 8, dtype=torch.bfloat16), send_rows, send_rows).wait()
    remote = 3 * 8 * 2 * (world.size - 1)
    same(dict(exchange.ledger.tx_bytes), {"rows": remote}, "bytes sent")
    same(dict(exchange.ledger.rx_bytes), {"rows": remote}, "bytes received")


def a_token_with_two_experts_on_one_rank_is_sent_twice(world: World) -> None:
    """Two assignments, two rows, as the libraries do: nothing is deduplicated on the way."""
    one_token = SHAPE.model_copy(update={"T": 1})
    for kind in KINDS:
        ready = world.prepare(world.case(kind, Mode.INFERENCE, (float(world.size),), one_token))
        same({int(e) // (8 // world.size) for e in ready.inputs.ids_TK[0].flatten()}, {0}, "rank of the experts")
        ready.run()
        sent, received = ready.exchange.ledger.tx_bytes, ready.exchange.ledger.rx_bytes
        row = 66 if kind[0] == "dist_moe" and kind[1] == "mxfp8" else 128
        same(sent["dispatch"], 0 if world.rank == 0 else 2 * row, f"{kind}: bytes of the dispatch")
        same(received["dispatch"], 2 * row * (world.size - 1) if world.rank == 0 else 0, f"{kind}: bytes received")
        same(sent["combine"], 2 * 128 * (world.size - 1) if world.rank == 0 else 0, f"{kind}: bytes of the combine")
