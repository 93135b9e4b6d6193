"""Run by torchrun on every rank: all items, one after the other; what each rank found goes to OUT/rank-<N>.json."""

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tests.backends.battery.items import ITEMS
from tests.backends.battery.world import World

from moebench.rank.leaving import leave


def main() -> None:
    world = World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}
    for name, item in ITEMS.items():
        try:
            dist.barrier()
            item(world)
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
    Path(sys.argv[1], f"rank-{world.rank}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main()
