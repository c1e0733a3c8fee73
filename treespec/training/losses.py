"""The distance of a draft head's distributions to the target's, without holding all logits at once.

A head's logits are by far the largest tensors of its training. Here a chunk of them lives only until it has become its
loss and its gradient with respect to the outputs, so the backward pass only multiplies by the incoming scalar.

Axis letters: N outputs, H their size, W the draft vocabulary, K candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 2**22
"""Logits of one chunk: few enough for a processor's caches, enough rows for a fast product."""

TINY = 1e-30
"""Below every probability that differs from zero."""


class TargetTopProbs(NamedTuple):
    """The target's most probable tokens that the draft vocabulary has, with their probabilities.

    `ids` int64 [N, K], draft ids, -1 for tokens outside; `probs` float32 [N, K], 0 for those; rows sum to at most one.
    """

    ids: Tensor
    probs: Tensor


def distribution_loss(
    outputs: Tensor, weight: Tensor, target: TargetTopProbs, row_weights: Tensor, tv_weight: float = 0.0
) -> Tensor:
    """The weighted sum over rows of (1 - tv_weight) KL(target, draft) + tv_weight TV(target, draft), a scalar.

    The Kullback-Leibler divergence and the cross-entropy have the same gradient. Mass of the target that is not in
    `target` counts in neither term.

    Args:
        outputs: [N, H]; for bfloat16 everything but the sums is computed in bfloat16.
        weight: [W, H] of the output head, which is not trained.
        row_weights: float32 [N].
    """
    loss = _DistributionLoss.apply(outputs, weight, target.ids, target.probs, row_weights, tv_weight)
    assert isinstance(loss, Tensor)
    return loss


class _DistributionLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, weight: Tensor, ids: Tensor, probs: Tensor, row_weights: Tensor, tv_weight: float
    ) -> Tensor:
        to_outputs = torch.empty_like(outputs)
        loss = torch.zeros((), device=outputs.device)
        size = max(CHUNK_LOGITS // len(weight), 1)
        for start in range(0, len(outputs), size):
            part = slice(start, start + size)
            logits = torch.nn.functional.linear(outputs[part], weight)
            value, slopes, scale = _chunk(logits, ids[part], probs[part], row_weights[part], tv_weight)
            loss += value
            torch.mul(slopes @ weight, scale, out=to_outputs[part])
        ctx.to_outputs = to_outputs
        return loss

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        return ctx.to_outputs * above[0].to(ctx.to_outputs.dtype), None, None, None, None, None


def _chunk(
    logits: Tensor, ids: Tensor, probs: Tensor, row_weights: Tensor, tv_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the logits' gradients [N, W] up to a factor [N, 1] per row.

    With q the draft's distribution, t the target's, c the sum of t, S where q < t and A the draft's mass there, the
    gradients of the two losses by logit v are c q_v - t_v and (A - 1[v in S]) q_v.
    """
    draft = logits.softmax(-1)
    is_known, columns = ids >= 0, ids.clamp(min=0)
    own = draft.gather(1, columns).float() * is_known
    is_below = own < probs
    mass_below = (own * is_below).sum(1, keepdim=True)
    divergence = torch.special.xlogy(probs, probs) - torch.special.xlogy(probs, own.clamp(min=TINY))
    distance = probs.sum(1) - torch.minimum(own, probs).sum(1)
    value = (row_weights * ((1 - tv_weight) * divergence.sum(1) + tv_weight * distance)).sum()
    common = ((1 - tv_weight) * probs.sum(1, keepdim=True) + tv_weight * mass_below).clamp(min=TINY)
    extra = -(1 - tv_weight) * probs - tv_weight * own * is_below
    return (
        value,
        draft.scatter_add_(1, columns, (extra / common).to(draft.dtype)),
        (common * row_weights.unsqueeze(1)).to(draft.dtype),
    )
