"""The case in the library's words, over the revisions of its interface."""

import pytest
from tests.backends.dist_moe_library.building import KINDS, library_case
from tests.backends.dist_moe_library.double import make_double
from tests.reference import gb300

from moebench.backends.dist_moe.library_config import TOKEN_FIELDS, library_config


@pytest.mark.parametrize("field", TOKEN_FIELDS)
def test_tokens_go_to_the_field_that_this_revision_has(field):
    config = library_config(make_double(field), library_case())
    assert getattr(config, field) == 10


def test_a_revision_with_another_name_is_refused_by_name():
    with pytest.raises(RuntimeError, match=r"has none of num_local_input_tokens, .* which has tokens_per_rank, "):
        library_config(make_double("tokens_per_rank"), library_case())


def test_a_published_packing_case():
    config = library_config(make_double(), gb300()["dist_moe-training-ep32-mxfp8-mega-packing-A-F3072"])
    assert (config.num_local_input_tokens, config.hidden_dim, config.intermediate_dim) == (2048, 7168, 3072)
    assert (config.top_k, config.num_experts, config.max_moe_layers_per_activation_slot) == (6, 384, 10)
    assert (config.activation_slot_capacity_factor, config.device_scratch_capacity_factor) == (2.5, 8.0)
    assert (config.num_activation_slots, config.inference) == (1, False)
    policy = config.block_scaled
    assert (policy.format.name, policy.pipeline, policy.fast_math) == ("MXFP8_E4M3", "mega", True)


def test_inference_has_no_slot():
    config = library_config(make_double(), library_case(KINDS[2]))
    assert (config.num_activation_slots, config.activation_slot_capacity_factor, config.inference) == (0, None, True)


def test_bf16_has_no_policy_and_nvfp4_no_fast_math():
    assert library_config(make_double(), library_case(KINDS[1])).block_scaled is None
    policy = library_config(make_double(), library_case(KINDS[7])).block_scaled
    assert (policy.format.name, policy.pipeline, policy.fast_math) == ("NVFP4", "mega", False)
