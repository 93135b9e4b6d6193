"""The loss on held-out text, over the whole vocabulary: the same for both arms."""

import numpy as np
import torch

from moebench.arms.data import Tokens
from moebench.arms.model import Stage
from moebench.arms.precision import autocast
from moebench.arms.seams import Seams

TOKENS_AT_ONCE = 1024
"""Few, so that the logits of the whole vocabulary do not set the peak of memory."""


@torch.no_grad()
def heldout_loss(
    stage: Stage, tokens: Tokens, at_most: int, device: torch.device, rank: int, ranks: int
) -> float | None:
    """Mean nats a token over the first windows of the held-out text; on the last rank, None on the others.

    Every rank of the pipeline must call it.
    """
    seams, seq = Seams(rank, ranks), stage.config.seq
    windows = max(1, min((len(tokens) - 1) // seq, at_most // seq))
    each = max(1, TOKENS_AT_ONCE // seq)
    total = 0.0
    for first in range(0, windows, each):
        starts = range(first * seq, min(first + each, windows) * seq, seq)
        block_BT = np.stack([tokens[start : start + seq + 1] for start in starts]).astype(np.int64)
        ids_BT = torch.from_numpy(block_BT).to(device)
        x = ids_BT[:, :-1]
        if not seams.is_first:
            x = seams.receive("before", (*x.shape, stage.config.dim), device).wait()
        with autocast(device):
            if seams.is_last:
                total += float(stage.loss(x, ids_BT[:, 1:])) * len(starts)
                continue
            seams.send("after", stage(x))
        seams.flush()
    return total / windows if seams.is_last else None
