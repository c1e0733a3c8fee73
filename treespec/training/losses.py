"""The distance of a draft head's distributions to the target's, with the output head's logits never held all at once.

A head's logits are by far the largest tensors of its training. Here every chunk of them lives only as long as it takes
to turn it into its loss and its gradient with respect to the outputs, so the backward pass multiplies by nothing but
the incoming scalar. In bfloat16 all of it runs in bfloat16, sums excepted.

Axis letters: N outputs, H their size, W the draft vocabulary, K candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 2**22
"""So many logits exist at once: few enough for a processor's caches, enough rows for a fast product."""

TINY = 1e-30
"""Below every probability that is told from zero."""


class Distributions(NamedTuple):
    """The target's distributions cut to their most probable tokens that the draft vocabulary has.

    `ids` int64 [N, K], draft ids, -1 for none; `probs` float32 [N, K], zero there; rows need not sum to one.
    """

    ids: Tensor
    probs: Tensor


def distribution_loss(
    outputs: Tensor, weight: Tensor, probs: Distributions, shares: Tensor, tv_weight: float = 0.0
) -> Tensor:
    """The weighted sum over rows of (1 - tv_weight) KL(target, draft) + tv_weight TV(target, draft), a scalar.

    Kullback-Leibler's divergence differs from the cross-entropy by the target's entropy alone, which no gradient sees.
    The mass that the cut distributions lack counts in neither.

    Args:
        outputs: [N, H].
        weight: [W, H] of the output head.
        distributions: of the target.
        shares: float32 [N], what a row counts.
        tv_weight: the total variation's share, 0 to 1.
    """
    loss = _DistributionLoss.apply(outputs, weight, probs.ids, probs.probs, shares, tv_weight)
    assert isinstance(loss, Tensor)
    return loss


class _DistributionLoss(torch.autograd.Function):
    """Gradients are made in the forward pass; see the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, weight: Tensor, ids: Tensor, probs: Tensor, shares: Tensor, tv_weight: float
    ) -> Tensor:
        to_outputs = torch.empty_like(outputs)
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), device=outputs.device)
        size = max(CHUNK_LOGITS // len(weight), 1)
        for start in range(0, len(outputs), size):
            part = slice(start, start + size)
            logits = torch.nn.functional.linear(outputs[part], weight)
            value, slopes, scale = _chunk(logits, ids[part], probs[part], shares[part], tv_weight)
            loss += value
            torch.mul(slopes @ weight, scale, out=to_outputs[part])
            if to_weight is not None:
                to_weight += slopes.t() @ (outputs[part] * scale)
        ctx.grads = to_outputs, None if to_weight is None else to_weight.to(weight.dtype)
        return loss

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        return *(grad if grad is None else grad * above[0].to(grad.dtype) for grad in ctx.grads), None, None, None, None


def _chunk(
    logits: Tensor, ids: Tensor, probs: Tensor, shares: Tensor, tv_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the logits' gradients [N, W] but for a factor [N, 1] per row.

    With q the draft's distribution, t the target's, c the sum of t, S where q < t and A the draft's mass there, the
    gradients of the two losses by logit v are c q_v - t_v and (A - 1[v in S]) q_v.
    """
    draft = logits.softmax(-1)
    is_known, places = ids >= 0, ids.clamp(min=0)
    own = draft.gather(1, places).float() * is_known
    is_short = own < probs
    short = (own * is_short).sum(1, keepdim=True)
    divergence = torch.special.xlogy(probs, probs) - torch.special.xlogy(probs, own.clamp(min=TINY))
    distance = probs.sum(1) - torch.minimum(own, probs).sum(1)
    value = (shares * ((1 - tv_weight) * divergence.sum(1) + tv_weight * distance)).sum()
    every = ((1 - tv_weight) * probs.sum(1, keepdim=True) + tv_weight * short).clamp(min=TINY)
    extra = -(1 - tv_weight) * probs - tv_weight * own * is_short
    return (
        value,
        draft.scatter_add_(1, places, (extra / every).to(draft.dtype)),
        (every * shares.unsqueeze(1)).to(draft.dtype),
    )
