"""Cases that mok can do in one process, and what it takes to run them."""

from typing import Any

import torch
from tests.reduce.build import make_case

from moebench.backends.mok.library import MokLibrary
from moebench.backends.protocol import Setup, Stages
from moebench.cases.case import Capacity, Case, Category, Mode
from moebench.cases.shape import Shape
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.step import Step

CPU = torch.device("cpu")
SHAPE = Shape(T=512, D=256, E=5, K=2, F=512, S=1)
"""5 experts of 204 or 205 rows each: 1280 padded rows."""

MANY_EXPERTS = SHAPE.model_copy(update={"E": 9})
"""9 experts of 113 or 114 rows each: 2304 padded rows, more than the 2048 of mok's default capacity."""

CAPACITY = Capacity(pad_rows=256, minibatch_rows=256, macrobatch_rows=1024)
"""The last expert's rows are replayed."""


def library_case(ep: int = 1, layers: int = 1, **changes: Any) -> Case:
    packing = {"category": Category.PACKING, "profile": "A"} if layers > 1 else {}
    wanted = {"shape": SHAPE, "capacity": CAPACITY, "mode": Mode.TRAINING, "layer_imbalances": (1.0,) * layers}
    return make_case("mok", ep, **{**wanted, **packing, **changes})


def library_step(case: Case) -> Step:
    """The case ready to run by the adapter, on the mok that `import mok` finds."""
    ids_PTK = make_routing(case)
    inputs = make_inputs(case, 0, CPU, ids_PTK)
    return Step(case, MokLibrary(Setup(case, 0, CPU, Exchange(0, 1), inputs.weights, ids_PTK, Stages())), inputs)
