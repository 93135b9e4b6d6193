"""Bytes that must cross device boundaries in a step, by formula. Needs no torch.

Every block stands on a device of its own: what is between two blocks is a seam.
"""

from moebench.arms.config import ModelConfig
from moebench.reduce.schema import Number, Open

STREAM_BYTES = 2
"""The residual stream is bf16 wherever it crosses a seam, on every device."""
GRADIENT_BYTES = 4
"""Gradients are fp32."""


def block_parameters(config: ModelConfig) -> int:
    """qkv, output, up and down linears with biases, two RMSNorms."""
    dim, wide = config.dim, config.dim * config.mlp_mult
    return (3 * dim * dim + 3 * dim) + (dim * dim + dim) + (wide * dim + wide) + (dim * wide + dim) + 2 * dim


def embedding_parameters(config: ModelConfig) -> int:
    """The untied embedding and output head."""
    return 2 * config.vocab * config.dim


def parameters(config: ModelConfig) -> int:
    return embedding_parameters(config) + config.n_blocks * block_parameters(config) + config.dim


class StepBytes(Open):
    """The modeled bytes of one step, every block on a device of its own, under the published names."""

    activation_bytes_per_seam: int
    seams: int
    e2e_per_step: int
    local_per_step: int
    e2e_allreduce_per_step: int
    e2e_allreduce_non_embed: int
    params: int
    params_non_embed: int
    embed_share: Number

    @property
    def traffic_ratio(self) -> float:
        """End to end over local, as published: seams and the gradient all-reduce of a data-parallel peer in the first,
        seams alone in the second. One decimal."""
        return round((self.e2e_per_step + self.e2e_allreduce_per_step) / self.local_per_step, 1)

    @property
    def seam_traffic_ratio(self) -> float:
        """End to end over local, seams alone in both."""
        return self.e2e_per_step / self.local_per_step


def step_bytes(config: ModelConfig, batch: int, unit_blocks: int = 1) -> StepBytes:
    """The byte model. Local: an activation crosses each seam, and a gradient those inside a unit of several blocks.

    The ratios need at least one seam; with none, the local bytes are 0.
    """
    activation = batch * config.seq * config.dim * STREAM_BYTES
    seams = config.n_blocks - 1
    inner_seams = config.n_blocks // unit_blocks * (unit_blocks - 1)
    params, embed = parameters(config), embedding_parameters(config)
    return StepBytes(
        activation_bytes_per_seam=activation,
        seams=seams,
        e2e_per_step=seams * 2 * activation,
        local_per_step=(seams + inner_seams) * activation,
        e2e_allreduce_per_step=params * GRADIENT_BYTES,
        e2e_allreduce_non_embed=(params - embed) * GRADIENT_BYTES,
        params=params,
        params_non_embed=params - embed,
        embed_share=round(embed / params, 3),
    )


def rank_seam_bytes(config: ModelConfig, batch: int, arm: str) -> int:
    """Bytes of one step over one seam between two ranks: the activation, and end to end its gradient too."""
    return step_bytes(config, batch).activation_bytes_per_seam * (2 if arm == "e2e" else 1)
