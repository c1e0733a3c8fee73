"""The training objective of all drafters: distributions like the target's at every depth of their drafts.

The distribution at position t is that of the token at t + 1. A draft anchored at position a predicts the token at
a + d + 1 at depth d, counted from 0. Logits are by far the largest tensors of training: a chunk of them lives only
until it has become its loss and its gradient with respect to the outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from treespec.training.data import Batch
from treespec.training.evaluate import EvaluatedDrafts

OUTSIDE, LAST_RANK = -1, 2**30
"""The draft id and the rank of a token outside the draft vocabulary."""
CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**27}
"""Logits of one chunk: few enough for a processor's caches or a GPU's memory, enough rows for a fast product."""
TINY = 1e-30
"""Below every probability that differs from zero."""


class Draft(NamedTuple):
    """A drafter's outputs at one depth: `outputs` [M, H], for drafts from `anchors` int64 [M] of `texts` int64 [M]."""

    outputs: Tensor
    texts: Tensor
    anchors: Tensor


class TargetTopProbs(NamedTuple):
    """The target's most probable tokens that the draft vocabulary has; rows of probabilities sum to at most one."""

    ids: Tensor  # int64 [M, k], draft ids, -1 for tokens outside.
    probs: Tensor  # float32 [M, k], 0 for those.


def unrolled(batch: Batch, depths: Iterable[Tensor]) -> list[Draft]:
    """Drafts of a head that is unrolled from a text's second token on, from its outputs [B, T - 1, H] by depth."""
    drafts = []
    for depth, outputs in enumerate(depths):
        texts, starts = batch.is_generated[:, 1 + depth :].nonzero(as_tuple=True)
        drafts.append(Draft(outputs[texts, starts], texts, starts + 1))
    return drafts


class Learner(nn.Module, ABC):
    """A drafter in training."""

    num_depths: int
    reads: dict[str, Any]  # The inputs that its weights have learned to read; with others they are of little use.
    target_ids: Tensor  # int64 [W], the target's id of every draft id.

    @property
    @abstractmethod
    def output_weight(self) -> Tensor:
        """[W, H], the output head's matrix."""

    @abstractmethod
    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """Drafts by depth, where the target generated the token; from every anchor if there is no generator."""

    @abstractmethod
    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the drafter's files for the target of that name, with weights in `dtype`."""


class Objective(nn.Module):
    """A drafter's loss and evaluation; the loss at depth d has the weight depth_decay^d."""

    _draft_ids: Tensor

    def __init__(self, learner: Learner, vocab_size: int, depth_decay: float) -> None:
        super().__init__()
        self.learner = learner
        decays = depth_decay ** torch.arange(learner.num_depths, device="cpu")
        self._decays = (decays / decays.sum()).tolist()
        ids = torch.full((vocab_size,), OUTSIDE, device=learner.target_ids.device)
        ids[learner.target_ids] = torch.arange(len(learner.target_ids), device=ids.device)
        self.register_buffer("_draft_ids", ids, persistent=False)

    def forward(self, batch: Batch, tv_weight: float, generator: torch.Generator) -> Tensor:
        """The loss of a batch: the weighted mean over depths of the mean over drafts."""
        total = torch.zeros((), dtype=torch.float32, device=batch.tokens.device)
        for depth, draft in enumerate(self.learner.drafts(batch, generator)):
            count = len(draft.texts)
            if count:
                weights = torch.full((count,), self._decays[depth] / count, device=draft.texts.device)
                target = self._target_probs(batch, draft, depth)
                total = total + distribution_loss(draft.outputs, self.learner.output_weight, target, weights, tv_weight)
        return total

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> EvaluatedDrafts:
        """Compare drafts from every anchor with the texts."""
        shape = (*batch.tokens.shape, self.learner.num_depths)
        ranks = torch.full(shape, LAST_RANK, device=batch.tokens.device)
        overlaps = torch.zeros(shape, dtype=torch.float32, device=ranks.device)
        is_evaluated = torch.zeros(shape, dtype=torch.bool, device=ranks.device)
        for depth, draft in enumerate(self.learner.drafts(batch, None)):
            at = (draft.texts, draft.anchors, torch.full_like(draft.texts, depth))
            right = self._draft_ids[batch.tokens[draft.texts, draft.anchors + depth + 1]]
            ranks[at], overlaps[at] = self._compare(draft.outputs, right, self._target_probs(batch, draft, depth))
            is_evaluated[at] = True
        return EvaluatedDrafts(ranks, overlaps, is_evaluated, batch.is_greedy)

    def _target_probs(self, batch: Batch, draft: Draft, depth: int) -> TargetTopProbs:
        at = (draft.texts, draft.anchors + depth)
        ids = self._draft_ids[batch.target_token_ids[at]]
        return TargetTopProbs(ids, batch.target_token_probs[at] * (ids >= 0))

    def _compare(self, outputs: Tensor, right: Tensor, target: TargetTopProbs) -> tuple[Tensor, Tensor]:
        """Ranks int64 [M] of draft ids `right` int64 [M], and overlaps float32 [M]."""
        weight = self.learner.output_weight
        ranks = torch.empty_like(right)
        overlaps = target.probs.new_zeros(len(right))
        for part in _chunks(right, len(weight)):
            probs = nn.functional.linear(outputs[part], weight).float().softmax(-1)
            own = probs.gather(1, right[part].clamp(min=0).unsqueeze(1))
            ranks[part] = torch.where(right[part] >= 0, (probs > own).sum(1), LAST_RANK)
            drafted = probs.gather(1, target.ids[part].clamp(min=0))
            overlaps[part] = torch.minimum(drafted, target.probs[part]).sum(1)
        return ranks, overlaps


def distribution_loss(
    outputs: Tensor, weight: Tensor, target: TargetTopProbs, row_weights: Tensor, tv_weight: float = 0.0
) -> Tensor:
    """The weighted sum over rows of (1 - tv_weight) KL(target, draft) + tv_weight TV(target, draft), a scalar.

    The Kullback-Leibler divergence and the cross-entropy have the same gradient. Mass of the target that is not in
    `target` counts in neither term. With bfloat16 `outputs` [M, H] everything but the sums is computed in bfloat16;
    `weight` is [W, H], `row_weights` float32 [M].
    """
    loss = _DistributionLoss.apply(outputs, weight, target.ids, target.probs, row_weights, tv_weight)
    assert isinstance(loss, Tensor)
    return loss


def _chunks(rows: Tensor, vocab_size: int) -> list[slice]:
    """Slices of rows with about `CHUNK_LOGITS` logits each."""
    size = max(CHUNK_LOGITS.get(rows.device.type, CHUNK_LOGITS["cpu"]) // vocab_size, 1)
    return [slice(start, start + size) for start in range(0, len(rows), size)]


class _DistributionLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, weight: Tensor, ids: Tensor, probs: Tensor, row_weights: Tensor, tv_weight: float
    ) -> Tensor:
        to_outputs = torch.empty_like(outputs)
        to_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), dtype=torch.float32, device=outputs.device)
        for part in _chunks(outputs, len(weight)):
            logits = nn.functional.linear(outputs[part], weight)
            value, slopes, scale = _chunk(logits, ids[part], probs[part], row_weights[part], tv_weight)
            loss += value
            torch.mul(slopes @ weight, scale, out=to_outputs[part])
            if to_weight is not None:
                to_weight.addmm_(slopes.T, outputs[part] * scale)
        ctx.to_outputs, ctx.to_weight = to_outputs, to_weight
        return loss

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        factor = above[0].to(ctx.to_outputs.dtype)
        to_weight = None if ctx.to_weight is None else ctx.to_weight * factor
        return ctx.to_outputs * factor, to_weight, None, None, None, None


def _chunk(
    logits: Tensor, ids: Tensor, probs: Tensor, row_weights: Tensor, tv_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the logits' gradients [M, W] up to a factor [M, 1] per row.

    With q the draft's distribution, t the target's, c the sum of t, S where q < t and A the draft's mass there, the
    gradients of the two losses by logit v are c q_v - t_v and (A - 1[v in S]) q_v.
    """
    draft = logits.softmax(-1)
    is_known = ids >= 0
    columns = ids.clamp(min=0)
    own = draft.gather(1, columns).float() * is_known
    is_below = own < probs
    mass_below = (own * is_below).sum(1, keepdim=True)
    divergence = torch.special.xlogy(probs, probs) - torch.special.xlogy(probs, own.clamp(min=TINY))
    distance = probs.sum(1) - torch.minimum(own, probs).sum(1)
    value = (row_weights * ((1 - tv_weight) * divergence.sum(1) + tv_weight * distance)).sum()
    common = ((1 - tv_weight) * probs.sum(1, keepdim=True) + tv_weight * mass_below).clamp(min=TINY)
    extra = -(1 - tv_weight) * probs - tv_weight * own * is_below
    slopes = draft.scatter_add_(1, columns, (extra / common).to(draft.dtype))
    return value, slopes, (common * row_weights.unsqueeze(1)).to(draft.dtype)
