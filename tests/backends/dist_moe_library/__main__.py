"""Run by torchrun on every rank: all kinds of cases on the double, whose ranks exchange tokens by gloo."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from tests.backends.battery.world import within
from tests.backends.dense import dense
from tests.backends.dist_moe_library.building import KINDS, library_case, prepare
from tests.backends.dist_moe_library.double import make_double

from moebench.backends.dist_moe.capacity import planned_capacity
from moebench.cases.case import Case, Mode
from moebench.rank.leaving import leave


def one_layer(case: Case, rank: int) -> None:
    found = prepare(case, rank).run()
    want = dense(case.model_copy(update={"mode": Mode.TRAINING}), rank)
    names = want if case.training else ["y"]
    within({name.removesuffix(" 0"): tensor for name, tensor in found.items()}, {n: want[n] for n in names}, 0.01)


def capacity(case: Case, rank: int) -> None:
    ready = prepare(case, rank)
    ready.run()
    found = ready.backend.capacity()
    if found != planned_capacity(case).model_dump(by_alias=True):
        raise AssertionError(f"capacity is {found}, planned {planned_capacity(case)}")


def main() -> None:
    sys.modules["dist_moe"] = make_double()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    rank, ep = dist.get_rank(), dist.get_world_size()
    for kind in KINDS:
        one_layer(library_case(kind, ep, imbalance=1.5), rank)
        capacity(library_case(kind, ep, layers=3, imbalance=1.5, slot_factor=1.0), rank)
    leave()


if __name__ == "__main__":
    main()
