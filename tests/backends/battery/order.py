"""Overlap is proved by the order of stages and collectives, never by time."""

from tests.backends.battery.world import KINDS, SMALL, World, expect, same

from moebench.cases.case import Mode, Pipeline

SKEWED = (2.0,)
"""All rows go to rank 0 or to few ranks: mok has several macrobatches."""


def shared_expert_runs_while_the_first_dispatch_is_in_flight(world: World) -> None:
    for kind in KINDS:
        for mode in Mode:
            names = _stages(world, kind, mode)
            _in_order(names, "send dispatch", "shared expert", "wait for dispatch")


def shared_expert_backward_runs_while_the_first_gradients_are_in_flight(world: World) -> None:
    for kind in KINDS:
        if kind[0] != "torch":
            names = _stages(world, kind, Mode.TRAINING)
            _in_order(names, "send backward dispatch", "shared expert backward", "wait for backward dispatch")


def mega_sends_the_next_chunk_before_it_computes_one(world: World) -> None:
    (kind,) = (kind for kind in KINDS if kind[2] is Pipeline.MEGA)
    for mode in Mode:
        names = _stages(world, kind, mode)
        same([name for name in names if name.startswith("experts")], [f"experts {c}" for c in range(4)])
        for c in range(3):
            _in_order(names, f"dispatch {c} done", f"dispatch {c + 1} start", f"experts {c}", f"dispatch {c + 1} done")
        sends = _places(names, "send dispatch")
        waits = _places(names, "wait for dispatch")
        same((len(sends), len(waits)), (4, 4), "dispatches")
        for c in range(3):
            experts = names.index(f"experts {c}")
            expect(waits[c] < sends[c + 1] < experts < waits[c + 1], f"chunk {c + 1} is not in flight: {names}")
        expect(_places(names, "wait for combine")[0] > names.index("experts 3"), "a chunk waited for its combine")


def staged_and_standard_move_a_layer_whole(world: World) -> None:
    for kind in KINDS:
        if kind[2] in (Pipeline.STAGED, Pipeline.STANDARD):
            same(_places(_stages(world, kind, Mode.INFERENCE), "send dispatch")[1:], [], "further dispatches")


def mok_runs_macrobatches_last_to_first_with_a_combine_beside_the_next_dispatch(world: World) -> None:
    for kind in KINDS:
        if kind[0] != "mok":
            continue
        names = _stages(world, kind, Mode.INFERENCE)
        last = len(_places(names, "send dispatch")) - 1
        expect(last >= 1, f"one macrobatch proves nothing: {names}")
        started = [name for name in names if name.startswith("dispatch") and name.endswith("start")]
        same(started, [f"dispatch {m} start" for m in range(last, -1, -1)])
        for m in range(last, 0, -1):
            _in_order(names, f"combine {m} start", f"dispatch {m - 1} start", f"combine {m} done")
        sends, waits = _places(names, "send dispatch"), _places(names, "wait for combine")
        for send, wait in zip(sends[1:], waits, strict=False):
            expect(send < wait, f"a dispatch waited for the combine before it: {names}")


def mok_replays_each_later_macrobatch_once_first_to_last(world: World) -> None:
    for kind in KINDS:
        if kind[0] == "mok":
            names = _stages(world, kind, Mode.TRAINING)
            last = len(_places(names, "send dispatch")) - 1
            same([n for n in names if n.startswith("replay")], [f"replay {m}" for m in range(1, last + 1)])
            same(len(_places(names, "send replay")), last, "replayed dispatches")


def _stages(world: World, kind: tuple, mode: Mode) -> list[str]:
    capacity = SMALL.model_copy(update={"macrobatch_rows": 32})
    ready = world.prepare(world.case(kind, mode, SKEWED, capacity=capacity), recording=True)
    ready.run()
    return ready.stages.names


def _places(names: list[str], name: str) -> list[int]:
    return [i for i, found in enumerate(names) if found == name]


def _in_order(names: list[str], *wanted: str) -> None:
    places = [names.index(name) if name in names else -1 for name in wanted]
    expect(-1 not in places and places == sorted(places), f"{wanted} are not in this order: {names}")
