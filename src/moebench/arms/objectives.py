"""What a block of the local arm is trained on: losses of a unit's own output, batched over all units of a stack.

Shapes: U units, N positions, D dim, C classes, V vocabulary, K candidates. A unit that predicts the next token from its
own output learns what it can add to the stream; nothing of a later unit enters its loss.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moebench.arms.config import LocalConfig, ObjectiveName
from moebench.arms.model import rms_norm

IGNORED = -100

NEGATIVES = 1024
"""Of the contrastive objective: other positions' targets, the same for all positions of a unit."""


class Objective(nn.Module):
    """Takes outputs y [U, N, D] and targets [U, N]; tokens by frequency: `rank_V` of a token, `token_V` of a rank; the
    last unit's head [V, D], or None. Returns the mean loss of each unit [U]."""

    def __init__(self, config: LocalConfig, dim: int, units: int) -> None:
        super().__init__()
        self.classes = config.classes

    def forward(
        self, y_UND: Tensor, target_UN: Tensor, rank_V: Tensor, token_V: Tensor, head_VD: Tensor | None
    ) -> Tensor:
        raise NotImplementedError


class OwnHead(Objective):
    """A head of the unit's own over classes of tokens: each frequent token is one, rare ones share."""

    def __init__(self, config: LocalConfig, dim: int, units: int) -> None:
        super().__init__(config, dim, units)
        self.heads_UCD = nn.Parameter(torch.empty(units, config.classes, dim))

    def forward(
        self, y_UND: Tensor, target_UN: Tensor, rank_V: Tensor, token_V: Tensor, head_VD: Tensor | None
    ) -> Tensor:
        logits_UNC = torch.bmm(rms_norm(y_UND), self.heads_UCD.transpose(1, 2))
        return _cross_entropy(logits_UNC, token_classes(rank_V[target_UN], self.classes))


class SharedHead(Objective):
    """The last unit's head, detached, over the most frequent tokens."""

    def forward(
        self, y_UND: Tensor, target_UN: Tensor, rank_V: Tensor, token_V: Tensor, head_VD: Tensor | None
    ) -> Tensor:
        assert head_VD is not None
        logits_UNC = F.linear(rms_norm(y_UND), head_VD.detach()[token_V[: self.classes]])
        class_UN = rank_V[target_UN]
        return _cross_entropy(logits_UNC, class_UN.masked_fill(class_UN >= self.classes, IGNORED))


class Contrastive(Objective):
    """The target's row in the last unit's head, detached, against those of other targets of the batch."""

    def forward(
        self, y_UND: Tensor, target_UN: Tensor, rank_V: Tensor, token_V: Tensor, head_VD: Tensor | None
    ) -> Tensor:
        assert head_VD is not None
        h_UND, rows_UND = rms_norm(y_UND), head_VD.detach()[target_UN]
        others_UK = target_UN[:, :: max(1, target_UN.shape[1] // NEGATIVES)]
        negative_UNK = torch.bmm(h_UND, head_VD.detach()[others_UK].transpose(1, 2)).float()
        negative_UNK = negative_UNK.masked_fill(target_UN[:, :, None] == others_UK[:, None, :], -torch.inf)
        positive_UN = (h_UND * rows_UND).sum(-1)
        return (_log_sum(positive_UN, negative_UNK) - positive_UN).mean(1)


class Regression(Objective):
    """The direction of the target's row in the last unit's head, detached."""

    def forward(
        self, y_UND: Tensor, target_UN: Tensor, rank_V: Tensor, token_V: Tensor, head_VD: Tensor | None
    ) -> Tensor:
        assert head_VD is not None
        return (1 - F.cosine_similarity(y_UND.float(), head_VD.detach()[target_UN], dim=-1)).mean(1)


OBJECTIVES: dict[ObjectiveName, type[Objective]] = {
    "own_head": OwnHead,
    "shared_head": SharedHead,
    "contrastive": Contrastive,
    "regression": Regression,
}


def token_classes(rank: Tensor, classes: int) -> Tensor:
    """The class of a token of this rank: of its own in the first half of the classes, else one of the other half, which
    the rarer tokens share in turn."""
    own = classes // 2
    return torch.where(rank < own, rank, own + (rank - own) % (classes - own))


def sampled_softmax(
    h_ND: Tensor, head_VD: Tensor, target_N: Tensor, frequent_ids: Tensor, sampled_ids: Tensor, others: int
) -> Tensor:
    """The last unit's loss without its whole vocabulary: the frequent tokens exactly, and of the `others` a uniform
    sample, each standing for others / sample of them (importance weighting; Jean et al. 2015, with accidental hits
    removed). The sum over the vocabulary is estimated without bias. Gradients reach h and the rows of these tokens.
    """
    F_, S = len(frequent_ids), len(sampled_ids)
    candidates_K = torch.cat((frequent_ids, sampled_ids))
    rows = F.embedding(torch.cat((candidates_K, target_N)), head_VD)
    rows_KD, target_ND = rows[: F_ + S], rows[F_ + S :]
    logits_NK = F.linear(h_ND, rows_KD).float()
    weight_K = torch.cat((h_ND.new_zeros(F_), h_ND.new_full((S,), others / max(S, 1)).log()))
    hit_NK = target_N[:, None] == candidates_K[None, :]
    positive_N = (h_ND * target_ND).sum(-1)
    return (_log_sum(positive_N, (logits_NK + weight_K).masked_fill(hit_NK, -torch.inf)) - positive_N).mean()


def _cross_entropy(logits_UNC: Tensor, class_UN: Tensor) -> Tensor:
    """Mean over positions that are not ignored, of each unit."""
    losses = F.cross_entropy(logits_UNC.flatten(0, 1), class_UN.flatten(), reduction="none").view(class_UN.shape)
    return losses.sum(1) / (class_UN != IGNORED).sum(1).clamp(min=1)


def _log_sum(positive: Tensor, others: Tensor) -> Tensor:
    """log(exp(positive) + sum of exp(others) over the last dimension)."""
    return torch.logaddexp(positive, others.logsumexp(-1))
