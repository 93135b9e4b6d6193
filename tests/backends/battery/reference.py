"""The fp32 reference over ranks, against one dense double-precision computation that knows no ranks."""

from tests.backends.battery.world import KINDS, World, within
from tests.backends.dense import dense, reference

from moebench.cases.case import Mode

LIMIT = 1e-5


def reference_is_the_dense_computation(world: World) -> None:
    for imbalance in (0.0, 1.0, 1.7):
        case = world.case(KINDS[0], Mode.TRAINING, (imbalance,))
        got = reference(world.prepare(case).inputs, world.rank, world.size)
        within(got, dense(case, world.rank), LIMIT)
