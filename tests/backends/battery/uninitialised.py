"""torch.empty is filled with NaN, and with the largest integer: whatever reads it shows.

Empty experts, empty ranks, padding and buffers that are written in part are where that happens.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tests.backends.battery.world import KINDS, SHAPE, World, expect

from moebench.cases.case import Mode
from moebench.cases.shape import Shape
from moebench.rank.check import check, first_failure

ODD = [
    ("an empty first rank", SHAPE, (0.0,)),
    ("one token a rank", SHAPE.model_copy(update={"T": 1}), (1.0,)),
    ("all rows on the first rank", SHAPE, (2.0,)),
    ("an empty rank in a chain", SHAPE, (0.0, 1.0)),
]


def the_filling_works(world: World) -> None:
    with poisoned():
        expect(bool(torch.empty(3).isnan().all()), "torch.empty is not filled with NaN")


def results_are_right_on_poisoned_memory(world: World) -> None:
    for kind in KINDS:
        for mode in Mode:
            for name, shape, imbalances in ODD:
                _right(world, kind, mode, name, shape, imbalances)


def _right(world: World, kind: tuple, mode: Mode, name: str, shape: Shape, imbalances: tuple[float, ...]) -> None:
    with poisoned():
        ready = world.prepare(world.case(kind, mode, imbalances, shape))
        for tensor, value in ready.run().items():
            expect(bool(value.isfinite().all()), f"{kind} {mode}, {name}: {tensor} is not finite")
        wrong = first_failure(check(ready.step, ready.exchange, "before"))
        expect(wrong is None, f"{kind} {mode}, {name}: {wrong}")


@contextmanager
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
