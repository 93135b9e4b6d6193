"""What is kept for backward and what is computed again must not show in the results."""

from tests.backends.battery.world import KINDS, SMALL, Ready, World, bitwise, same, within
from torch import Tensor

from moebench.cases.case import Capacity, Mode

PROFILE = (0.5, 1.5, 1.0)
HALF_ULP = 2.0**-9
"""Of bf16: the relative error of one rounding."""


def dist_moe_recomputed_activations_give_the_same_gradients_bitwise(world: World) -> None:
    """The same rows go through the same products again."""
    for kind in KINDS:
        if kind[0] == "dist_moe":
            kept = _prepare(world, kind, SMALL.model_copy(update={"slot_factor": 8.0}))
            recomputed = _prepare(world, kind, SMALL.model_copy(update={"slot_factor": 0.0}))
            bitwise(recomputed.run(), kept.run())
            same(_recomputed(kept), 0, "recomputed rank-layers with a large slot")
            same(_recomputed(recomputed), world.size * len(PROFILE), "recomputed rank-layers without a slot")
            same("replay" in kept.exchange.ledger.tx_bytes, False, "a replayed dispatch of what was kept")


def mok_replayed_rows_give_the_gradients_of_kept_rows(world: World) -> None:
    """Rows are the same bitwise: mxfp8 blocks of 32 never cross a macrobatch. Weight gradients are not: the parts
    of an expert that lies in several macrobatches are rounded to bf16 each, then added and rounded again."""
    for kind in KINDS:
        if kind[0] == "mok":
            kept = _prepare(world, kind, SMALL.model_copy(update={"retained_factor": 100.0}))
            replayed = _prepare(world, kind, SMALL.model_copy(update={"retained_factor": 0.5}))
            want, got = kept.run(), replayed.run()
            rows, weights = _split(want)
            within(got, rows, HALF_ULP)
            within(got, weights, 3 * HALF_ULP)
            same(_replayed(kept), 0, "replayed rows where all are kept")
            same(_replayed(replayed) > 0, True, "some rows are replayed")


def minibatches_do_not_show_in_the_results(world: World) -> None:
    for kind in KINDS:
        if kind[0] == "mok":
            whole = _prepare(world, kind, SMALL.model_copy(update={"minibatch_rows": 4096, "macrobatch_rows": 4096}))
            cut = _prepare(world, kind, SMALL.model_copy(update={"minibatch_rows": 32, "macrobatch_rows": 4096}))
            within(cut.run(), whole.run(), HALF_ULP)


def _prepare(world: World, kind: tuple, capacity: Capacity) -> Ready:
    return world.prepare(world.case(kind, Mode.TRAINING, PROFILE, capacity=capacity))


def _recomputed(ready: Ready) -> int:
    return (ready.backend.capacity() or {})["capacityRecomputeFlags"]


def _replayed(ready: Ready) -> int:
    return (ready.backend.capacity() or {})["totalReplayRows"]


def _split(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(("dw13", "dw2"))}
    return {name: tensor for name, tensor in tensors.items() if name not in weights}, weights
