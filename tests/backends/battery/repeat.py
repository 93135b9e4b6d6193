"""Nothing of one iteration is left in the next, and pipelines differ in schedule only."""

from tests.backends.battery.world import KINDS, World, bitwise, distance, expect, within

from moebench.cases.case import Mode, Pipeline


def a_second_iteration_gives_the_same_bits(world: World) -> None:
    for kind in KINDS:
        for mode in Mode:
            ready = world.prepare(world.case(kind, mode, (1.5, 0.5)))
            first = ready.run()
            bitwise(ready.run(), first)


def another_case_in_between_changes_nothing(world: World) -> None:
    for kind in KINDS:
        ready = world.prepare(world.case(kind, Mode.TRAINING))
        first = ready.run()
        world.prepare(world.case(kind, Mode.TRAINING, (2.0,))).run()
        bitwise(ready.run(), first)


def mega_gives_what_staged_gives(world: World) -> None:
    """Equal up to a bf16 rounding: a CPU's product may sum in another order for another number of rows. In backward
    each chunk's weight gradients are rounded, and blocks of rows end elsewhere, so only forward is compared."""
    staged, mega = (kind for kind in KINDS if kind[2] in (Pipeline.STAGED, Pipeline.MEGA))
    for mode in Mode:
        for imbalance in (0.0, 1.0, 2.0):
            want, got = (world.prepare(world.case(kind, mode, (imbalance,))).run() for kind in (staged, mega))
            within({"y": got["y"]}, {"y": want["y"]}, 2.0**-9)


def ranks_do_different_work(world: World) -> None:
    """Were x, scores or gradients the same on every rank, wrong destinations could go unseen."""
    ready = world.prepare(world.case(KINDS[0], Mode.TRAINING))
    inputs = ready.inputs
    for name, mine in (("x", inputs.x_TD), ("scores", inputs.scores_TK[0]), ("dy", inputs.dy_TD)):
        every_P = ready.exchange.all_gather("test", mine.detach()).wait()
        for other in range(world.size):
            if other != world.rank:
                expect(distance(every_P[other], mine.detach()) > 0.1, f"{name} is the same on rank {other}")
