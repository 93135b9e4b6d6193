"""On a GPU: a captured step learns what an eager one does, and nothing of a step waits for the device."""

import pytest
import torch
from tests.arms.small import preset, ranks_by_frequency, tokens

from moebench.arms.e2e_trainer import EndToEnd
from moebench.arms.loader import Batches, Loader
from moebench.arms.local_trainer import BlockLocal
from moebench.arms.seams import Seams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CUDA = torch.device("cuda", 0)
CHOSEN = preset(local={"final_sampled": 50, "units_at_once": 2}, train={"learning_rate": 1e-3})


def trainer(arm: str, mode: str):
    batches = Batches(tokens(), CHOSEN.model.seq, CHOSEN.train.batch, CHOSEN.train.seed)
    given = (CHOSEN, mode, CUDA, Seams(0, 1), Loader(batches, CHOSEN, CUDA), range(4))
    made = EndToEnd(*given) if arm == "e2e" else BlockLocal(*given, ranks_by_frequency())
    made.warm_up()
    return made


def losses(arm: str, mode: str, steps: int = 12) -> list[float]:
    made, found = trainer(arm, mode), []
    for step in range(steps):
        made.step(step, 0.0)
        found.append(float(made.loss))
    return found


@pytest.mark.parametrize("arm", ["e2e", "local"])
@pytest.mark.parametrize("mode", ["compiled", "graphed"])
def test_every_mode_learns_the_same(arm, mode):
    assert losses(arm, mode) == pytest.approx(losses(arm, "eager"), rel=5e-3)


@pytest.mark.parametrize("arm", ["e2e", "local"])
@pytest.mark.parametrize("mode", ["eager", "graphed"])
def test_a_step_never_waits_for_the_device(arm, mode):
    made = trainer(arm, mode)
    torch.cuda.set_sync_debug_mode("error")
    try:
        made.step(0, 0.0)
        made.step(1, 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
