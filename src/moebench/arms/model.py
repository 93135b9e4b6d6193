"""The GPT that both arms train: pre-norm blocks with rotary attention, an untied embedding and head.

Shapes: B batch, S sequence, D dim, H heads, h head width, V vocabulary, U blocks of a stack (computed as one batch).
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moebench.arms.config import ModelConfig

STREAM = torch.bfloat16
"""What goes from block to block, on every device: a seam carries 2 bytes an element."""

ROPE_BASE = 10_000.0
EPS = 1e-6
INIT_STD = 0.02


class Block(nn.Module):
    """One block, or with `stack` a stack of U blocks of the same shape that are computed as one batch."""

    def __init__(self, config: ModelConfig, stack: int | None = None) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        D, M, lead = config.dim, config.dim * config.mlp_mult, () if stack is None else (stack,)
        self.attention_norm = nn.Parameter(torch.empty(*lead, D))
        self.qkv = nn.Parameter(torch.empty(*lead, 3 * D, D))
        self.qkv_bias = nn.Parameter(torch.empty(*lead, 3 * D))
        self.out = nn.Parameter(torch.empty(*lead, D, D))
        self.out_bias = nn.Parameter(torch.empty(*lead, D))
        self.mlp_norm = nn.Parameter(torch.empty(*lead, D))
        self.up = nn.Parameter(torch.empty(*lead, M, D))
        self.up_bias = nn.Parameter(torch.empty(*lead, M))
        self.down = nn.Parameter(torch.empty(*lead, D, M))
        self.down_bias = nn.Parameter(torch.empty(*lead, D))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, S, D] or [U, B, S, D] -> the same shape, bf16."""
        qkv = _linear(_norm(x, self.attention_norm), self.qkv, self.qkv_bias)
        x = x + _linear(_attention(qkv, self.n_heads, rope), self.out, self.out_bias)
        wide = F.gelu(_linear(_norm(x, self.mlp_norm), self.up, self.up_bias))
        return (x + _linear(wide, self.down, self.down_bias)).to(STREAM)


def rms_norm(x: Tensor, gain_D: Tensor | None = None) -> Tensor:
    """In fp32, whatever x is."""
    return F.rms_norm(x.float(), (x.shape[-1],), gain_D, EPS)


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return rms_norm(x, gain) if gain.dim() == 1 else rms_norm(x) * gain[:, None, None, :]


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight^T + bias, for one block or for all of a stack at once."""
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    U, B, S, _ = x.shape
    return torch.baddbmm(bias[:, None, :], x.flatten(1, 2), weight.transpose(1, 2)).view(U, B, S, -1)


def _attention(qkv: Tensor, n_heads: int, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Causal attention, qkv [..., S, 3D] -> [..., S, D]."""
    *lead, S, width = qkv.shape
    q_BHSh, k_BHSh, v_BHSh = qkv.view(-1, S, 3, n_heads, width // 3 // n_heads).permute(2, 0, 3, 1, 4).unbind()
    q_BHSh, k_BHSh = _rotate(q_BHSh, rope), _rotate(k_BHSh, rope)
    y_BHSh = F.scaled_dot_product_attention(q_BHSh, k_BHSh, v_BHSh, is_causal=True)
    return y_BHSh.transpose(1, 2).reshape(*lead, S, width // 3)


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [S, h/2] (Su et al. 2021)."""
    half = config.dim // config.n_heads // 2
    frequencies = ROPE_BASE ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(config.seq, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def _rotate(x_BHSh: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    first, second = x_BHSh.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x_BHSh.dtype)


def initial_blocks(config: ModelConfig, seed: int, blocks: range) -> Iterator[dict[str, Tensor]]:
    """The initial weights of some blocks: the same for both arms, whatever rank holds them."""
    for index in blocks:
        generator = _generator(seed, index)
        with torch.no_grad():
            made = {name: torch.zeros_like(p) for name, p in Block(config).named_parameters()}
            for name in ("qkv", "out", "up", "down"):
                residual = name in ("out", "down")
                std = INIT_STD / math.sqrt(2 * config.n_blocks) if residual else INIT_STD
                made[name].normal_(std=std, generator=generator)
            for name in ("attention_norm", "mlp_norm"):
                made[name].fill_(1)
        yield made


def initial_table(config: ModelConfig, seed: int, which: str) -> Tensor:
    """The initial `embedding` or `head`, [V, D]."""
    index = config.n_blocks + ("embedding", "head").index(which)
    return torch.empty(config.vocab, config.dim).normal_(std=INIT_STD, generator=_generator(seed, index))


def _generator(seed: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 100_003 + index)


class Ends(nn.Module):
    """What stands before the first block and after the last: a rank has the parts at its own ends."""

    def __init__(self, config: ModelConfig, *, first: bool, last: bool) -> None:
        super().__init__()
        V, D = config.vocab, config.dim
        self.embedding = nn.Parameter(torch.empty(V, D)) if first else None
        self.norm = nn.Parameter(torch.empty(D)) if last else None
        self.head = nn.Parameter(torch.empty(V, D)) if last else None

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> [..., D], bf16."""
        assert self.embedding is not None
        return F.embedding(ids, self.embedding).to(STREAM)

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over the whole vocabulary, x [..., D], targets [...]."""
        assert self.head is not None
        logits = F.linear(rms_norm(x, self.norm), self.head)
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten().long())

    def initialise(self, config: ModelConfig, seed: int) -> None:
        with torch.no_grad():
            if self.embedding is not None:
                self.embedding.copy_(initial_table(config, seed, "embedding"))
            if self.head is not None and self.norm is not None:
                self.head.copy_(initial_table(config, seed, "head"))
                self.norm.fill_(1)


class Stage(nn.Module):
    """Consecutive blocks as separate modules, with the ends that belong to them; all blocks make the whole model."""

    def __init__(self, config: ModelConfig, blocks: range) -> None:
        super().__init__()
        self.config, self.indices = config, blocks
        self.ends = Ends(config, first=blocks.start == 0, last=blocks.stop == config.n_blocks)
        self.blocks = [Block(config) for _ in blocks]
        self._registered = nn.ModuleList(self.blocks)
        self.cos: Tensor
        self.sin: Tensor
        for name, table in zip(("cos", "sin"), rope_tables(config), strict=True):
            self.register_buffer(name, table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Ids [B, S] on the first stage, else the previous stage's output [B, S, D] -> [B, S, D]."""
        if self.ends.embedding is not None:
            x = self.ends.embed(x)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return x

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        return self.ends.loss(self.forward(x), targets)

    def initialise(self, seed: int) -> None:
        self.ends.initialise(self.config, seed)
        with torch.no_grad():
            for block, weights in zip(self.blocks, initial_blocks(self.config, seed, self.indices), strict=True):
                block.load_state_dict(weights)
