"""What every kind of drafter is trained for: distributions like the target's at every depth of its drafts.

Places: the token at place + 1 is the one that a distribution at a place is of. A draft that starts from the token at an
anchor guesses, at depth d from 0, what follows the place anchor + d.

Axis letters: B texts, T tokens of the longest of them, N outputs, H their size, W the draft vocabulary, V the target's,
K candidates, D depths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from treespec.training.data import Batch
from treespec.training.losses import CHUNK_LOGITS, Distributions, distribution_loss
from treespec.training.vocabulary import draft_ids

MISSED = 2**30
"""The rank of a token that the draft vocabulary does not have."""


class Draft(NamedTuple):
    """What a drafter says at one depth: `outputs` [N, H], for drafts from `anchors` int64 [N] of `texts` int64 [N]."""

    outputs: Tensor
    texts: Tensor
    anchors: Tensor


class Judged(NamedTuple):
    """What became of the drafts of a batch, by anchor.

    `ranks` int64 [B, T, D], how many tokens the drafter finds more probable than the text's own at that depth;
    `overlaps` float32 [B, T, D], the mass that its distribution shares with the target's; `is_judged` bool [B, T, D].
    """

    ranks: Tensor
    overlaps: Tensor
    is_judged: Tensor


class Learner(Protocol):
    """A drafter as its training sees it, a module."""

    num_depths: int

    @property
    def target_ids(self) -> Tensor:
        """int64 [W], the target's id of every draft id."""
        ...

    @property
    def reads(self) -> dict[str, Any]:
        """What its weights have learned to read, by name: with anything else in its place they are worth little."""
        ...

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """Drafts by depth, at places where the target wrote what comes next; all of them without a generator."""
        ...

    @property
    def output_weight(self) -> Tensor:
        """[W, H], which makes logits of outputs."""
        ...

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the drafter for the target of that name; `dtype` of its files."""
        ...


class Objective(nn.Module):
    """A drafter's loss and its judgement.

    Args:
        learner: a module.
        vocab_size: V.
        depth_decay: the loss at depth d counts depth_decay^d.
    """

    _draft_ids: Tensor

    def __init__(self, learner: Learner, vocab_size: int, depth_decay: float) -> None:
        super().__init__()
        assert isinstance(learner, nn.Module)
        self.learner = learner
        decays = depth_decay ** torch.arange(learner.num_depths)
        self._decays = (decays / decays.sum()).tolist()
        self.register_buffer("_draft_ids", draft_ids(learner.target_ids, vocab_size), persistent=False)

    def forward(self, batch: Batch, tv_weight: float, generator: torch.Generator) -> Tensor:
        """The loss of a batch: over depths the weighted, over places the plain mean."""
        total = torch.zeros((), device=batch.tokens.device)
        for depth, draft in enumerate(self.learner.drafts(batch, generator)):
            count = len(draft.texts)
            if count:
                shares = torch.full((count,), self._decays[depth] / count, device=draft.texts.device)
                probs = self._probs(batch, draft, depth)
                total = total + distribution_loss(draft.outputs, self.learner.output_weight, probs, shares, tv_weight)
        return total

    @torch.no_grad()
    def judge(self, batch: Batch) -> Judged:
        """See `Judged`."""
        shape = (*batch.tokens.shape, self.learner.num_depths)
        ranks = torch.full(shape, MISSED, device=batch.tokens.device)
        overlaps = torch.zeros(shape, device=ranks.device)
        is_judged = torch.zeros(shape, dtype=torch.bool, device=ranks.device)
        for depth, draft in enumerate(self.learner.drafts(batch, None)):
            at = (draft.texts, draft.anchors, torch.full_like(draft.texts, depth))
            right = self._draft_ids[batch.tokens[draft.texts, draft.anchors + depth + 1]]
            ranks[at], overlaps[at] = self._judge(draft.outputs, right, self._probs(batch, draft, depth))
            is_judged[at] = True
        return Judged(ranks, overlaps, is_judged)

    def _probs(self, batch: Batch, draft: Draft, depth: int) -> Distributions:
        at = (draft.texts, draft.anchors + depth)
        ids = self._draft_ids[batch.target_token_ids[at]]
        return Distributions(ids, batch.target_token_probs[at] * (ids >= 0))

    def _judge(self, outputs: Tensor, right: Tensor, distributions: Distributions) -> tuple[Tensor, Tensor]:
        """Ranks int64 [N] of draft ids [N], and overlaps float32 [N]."""
        weight = self.learner.output_weight
        ranks, overlaps = torch.full_like(right, MISSED), distributions.probs.new_zeros(len(right))
        size = max(CHUNK_LOGITS // len(weight), 1)
        for start in range(0, len(right), size):
            part = slice(start, start + size)
            logits = nn.functional.linear(outputs[part], weight)
            probs, known = logits.float().softmax(-1), right[part] >= 0
            own = probs.gather(1, right[part].clamp(min=0).unsqueeze(1))
            ranks[part] = torch.where(known, (probs > own).sum(1), MISSED)
            drafted = probs.gather(1, distributions.ids[part].clamp(min=0))
            overlaps[part] = torch.minimum(drafted, distributions.probs[part]).sum(1)
        return ranks, overlaps
