"""The shape of one MoE layer, and the published models whose shapes can be asked for by name."""

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Sizes of one layer as every rank sees it. Names are the field's one-letter axes.

    Legend used in all tensor names: T tokens of a rank, D hidden, E experts in total, e experts of a rank,
    K experts per token, F FFN width of an expert, S shared experts, R rows of a rank.
    The upper limits keep counts of rows exact in 64 bits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    T: int = Field(ge=1, le=2**24, description="tokens per rank")
    D: int = Field(ge=8, le=2**20, description="hidden width")
    E: int = Field(ge=1, le=2**15, description="routed experts, over all ranks")
    K: int = Field(ge=1, le=2**16, description="experts per token")
    F: int = Field(ge=8, le=2**20, description="FFN width of an expert")
    S: int = Field(default=1, ge=0, le=2**10, description="shared experts, BF16")


MODELS: dict[str, Shape] = {
    # Source: the shape table of mok's own test grid.
    "kimi-k2.7": Shape(E=384, D=7168, F=2048, K=8, T=7168),
    "glm-5.2": Shape(E=256, D=6144, F=2048, K=8, T=7168),
    "qwen3.5": Shape(E=512, D=4096, F=1024, K=10, T=7168),
    "deepseek-v4-pro": Shape(E=384, D=7168, F=3072, K=6, T=7168),
}
