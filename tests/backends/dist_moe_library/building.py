"""Cases of the real dist_moe, made ready on the contract double."""

from types import ModuleType

import numpy as np
import torch
from tests.backends.battery.world import Ready
from tests.reduce.build import make_case

from moebench.backends.dist_moe.library import DistMoeLibrary
from moebench.backends.protocol import Setup, Stages
from moebench.cases.case import Capacity, Case, Category, Implementation, Mode, Pipeline, Precision
from moebench.cases.routing import Ids
from moebench.cases.shape import Shape
from moebench.rank.exchange import Exchange
from moebench.rank.inputs import make_inputs, make_routing
from moebench.rank.step import Step

SHAPE = Shape(T=10, D=128, E=8, K=2, F=128, S=1)
WIDE = SHAPE.model_copy(update={"D": 256, "F": 256})

KINDS = [
    (Mode.INFERENCE, Precision.BF16, Pipeline.STANDARD),
    (Mode.TRAINING, Precision.BF16, Pipeline.STANDARD),
    (Mode.INFERENCE, Precision.MXFP8, Pipeline.STAGED),
    (Mode.TRAINING, Precision.MXFP8, Pipeline.STAGED),
    (Mode.INFERENCE, Precision.MXFP8, Pipeline.MEGA),
    (Mode.TRAINING, Precision.MXFP8, Pipeline.MEGA),
    (Mode.INFERENCE, Precision.NVFP4, Pipeline.STAGED),
    (Mode.INFERENCE, Precision.NVFP4, Pipeline.MEGA),
]
Kind = tuple[Mode, Precision, Pipeline]


def library_case(
    kind: Kind = KINDS[0],
    ep: int = 1,
    layers: int = 1,
    shape: Shape | None = None,
    imbalance: float = 1.0,
    **capacity: float,
) -> Case:
    mode, precision, pipeline = kind
    packing = {"category": Category.PACKING, "profile": "A"} if layers > 1 else {}
    return make_case(
        "dist_moe",
        ep,
        implementation=Implementation.LIBRARY,
        mode=mode,
        precision=precision,
        pipeline=pipeline,
        shape=shape or (WIDE if precision is Precision.NVFP4 else SHAPE),
        imbalance=imbalance,
        layer_imbalances=(imbalance,) * layers,
        capacity=Capacity(**capacity),
        **packing,
    )


def prepare(
    case: Case, rank: int = 0, device: str = "cpu", ids_PTK: list[Ids] | None = None, recording: bool = False
) -> Ready:
    """A case on this rank; sys.modules must have the double. `ids_PTK`: other routing than the case's."""
    on, ids_PTK = torch.device(device), ids_PTK or make_routing(case)
    inputs = make_inputs(case, rank, on, ids_PTK)
    exchange, stages = Exchange(rank, case.ep), Stages(recording)
    backend = DistMoeLibrary(Setup(case, rank, on, exchange, inputs.weights, ids_PTK, stages))
    return Ready(Step(case, backend, inputs), backend, inputs, exchange, stages)


def all_to_expert_0(case: Case) -> list[Ids]:
    """As many tokens of all ranks as can be on the first experts, in every layer."""
    s = case.shape
    return [np.tile(np.arange(s.K, dtype=np.int32), (case.ep, s.T, 1)) for _ in range(case.layers)]


def called(double: ModuleType, name: str) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    """Arguments of the calls that the adapter made of one function."""
    return [(args, kwargs) for which, args, kwargs in double.calls if which == name]
