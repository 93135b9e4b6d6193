"""A case in the words of the real dist_moe: its Config and its block-scaled policy."""

from dataclasses import fields
from types import ModuleType
from typing import Any

from moebench.backends.dist_moe.library_requirements import PACKAGE, installed
from moebench.cases.case import Case, Precision

TOKEN_FIELDS = ("num_local_input_tokens", "max_num_local_input_tokens", "max_local_input_tokens")
"""Names that tokens of a rank have had: exact in 0.1.0, an upper bound in later revisions. We always pass exactly T."""


def library_config(dist_moe: ModuleType, case: Case) -> Any:
    """The Config of a case: one context for all its layers, which share one activation slot in training.

    Raises RuntimeError if this revision of the library names its token count otherwise, and what Config raises.
    """
    s, training = case.shape, case.training
    tokens = {_token_field(dist_moe): s.T}
    return dist_moe.Config(
        **tokens,
        hidden_dim=s.D,
        intermediate_dim=s.F,
        top_k=s.K,
        num_experts=s.E,
        max_moe_layers_per_activation_slot=case.layers,
        device_scratch_capacity_factor=case.capacity.scratch_factor,
        activation_slot_capacity_factor=case.capacity.slot_factor if training else None,
        num_activation_slots=1 if training else 0,
        block_scaled=block_scaled(dist_moe, case),
        inference=not training,
    )


def block_scaled(dist_moe: ModuleType, case: Case) -> Any | None:
    """How products are computed in mxfp8 and nvfp4; None in bf16. mxfp8 approximates the sigmoid of SwiGLU, as in the
    published report; nvfp4 has no such choice."""
    if case.precision is Precision.BF16:
        return None
    mxfp8 = case.precision is Precision.MXFP8
    formats = dist_moe.BlockScaledFormat
    return dist_moe.BlockScaledConfig(
        format=formats.MXFP8_E4M3 if mxfp8 else formats.NVFP4,
        fast_math=mxfp8,
        pipeline=str(case.pipeline),
    )


def _token_field(dist_moe: ModuleType) -> str:
    names = [field.name for field in fields(dist_moe.Config)]
    for name in TOKEN_FIELDS:
        if name in names:
            return name
    raise RuntimeError(
        f"{PACKAGE} {installed(PACKAGE)} has none of {', '.join(TOKEN_FIELDS)} in its Config, which has "
        f"{', '.join(names)}; moebench is written for {PACKAGE} 0.1.0."
    )
