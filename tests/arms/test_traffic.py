import pytest
import torch
from tests.arms.small import preset

from moebench.arms.config import load_preset
from moebench.arms.model import Stage
from moebench.arms.traffic import rank_seam_bytes, step_bytes

PUBLISHED = load_preset("l40s").model


def test_byte_model_gives_every_published_number():
    modeled = step_bytes(PUBLISHED, batch=8)
    assert modeled.model_dump() == {
        "activation_bytes_per_seam": 4_194_304,
        "seams": 15,
        "e2e_per_step": 125_829_120,
        "local_per_step": 62_914_560,
        "e2e_allreduce_per_step": 824_018_944,
        "e2e_allreduce_non_embed": 201_689_088,
        "params": 206_004_736,
        "params_non_embed": 50_422_272,
        "embed_share": 0.755,
    }
    assert modeled.traffic_ratio == 15.1
    assert modeled.seam_traffic_ratio == 2.0


def test_gradients_cross_the_seams_inside_a_unit():
    alone, pairs, whole = (step_bytes(PUBLISHED, 8, unit_blocks=size) for size in (1, 2, 16))
    assert pairs.local_per_step - alone.local_per_step == 8 * 4_194_304
    assert whole.local_per_step == whole.e2e_per_step


def test_a_seam_between_ranks_carries_a_gradient_end_to_end_only():
    assert rank_seam_bytes(PUBLISHED, 8, "e2e") == 2 * rank_seam_bytes(PUBLISHED, 8, "local") == 8_388_608


@pytest.mark.parametrize(("config", "count"), [(PUBLISHED, 206_004_736), (preset().model, None)])
def test_the_model_has_as_many_parameters_as_the_formula(config, count):
    with torch.device("meta"):
        stage = Stage(config, range(config.n_blocks))
    counted = sum(p.numel() for p in stage.parameters())
    assert counted == step_bytes(config, 1).params
    assert count is None or counted == count
    assert stage.ends.embedding.numel() + stage.ends.head.numel() == 2 * config.vocab * config.dim
