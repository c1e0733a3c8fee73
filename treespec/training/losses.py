"""The distance of a draft head's laws to the target's, with the output head's logits never held all at once.

A head's logits are by far the largest tensors of its training. Here every chunk of them lives only as long as it takes
to turn it into its loss and its gradient with respect to the outputs, so the backward pass multiplies by nothing but
the incoming scalar. In bfloat16 all of it runs in bfloat16, sums excepted.

Axis letters: N outputs, H their size, W the draft vocabulary, K candidates, R the rank of a bigram bias.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 2**22
"""So many logits exist at once: few enough for a processor's caches, enough rows for a fast product."""

TINY = 1e-30
"""Below every probability that is told from zero."""


class Laws(NamedTuple):
    """The target's laws cut to their most probable tokens that the draft vocabulary has.

    `ids` int64 [N, K], draft ids, -1 for none; `probs` float32 [N, K], zero there; rows need not sum to one.
    """

    ids: Tensor
    probs: Tensor


class Rows(NamedTuple):
    """What the logits come from: `outputs` [N, H] and, where there is a bigram bias, its rows `biases` [N, R]."""

    outputs: Tensor
    biases: Tensor | None = None


def law_loss(
    rows: Rows,
    weight: Tensor,
    bias_weight: Tensor | None,
    laws: Laws,
    shares: Tensor,
    tv_weight: float = 0.0,
) -> Tensor:
    """The weighted sum over rows of (1 - tv_weight) KL(target, draft) + tv_weight TV(target, draft), a scalar.

    Kullback-Leibler's divergence differs from the cross-entropy by the target's entropy alone, which no gradient sees.
    The mass that the cut laws lack counts in neither.

    Args:
        weight: [W, H] of the output head.
        bias_weight: [W, R], see `Rows`.
        shares: float32 [N], what a row counts.
        tv_weight: the total variation's share, 0 to 1.
    """
    biases = rows.biases if rows.biases is not None else rows.outputs[:, :0]
    second = bias_weight if bias_weight is not None else weight[:, :0]
    return _LawLoss.apply(rows.outputs, biases, weight, second, laws.ids, laws.probs, shares, tv_weight)


class _LawLoss(torch.autograd.Function):
    """Gradients are made in the forward pass; see the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        biases: Tensor,
        weight: Tensor,
        bias_weight: Tensor,
        ids: Tensor,
        probs: Tensor,
        shares: Tensor,
        tv_weight: float,
    ) -> Tensor:
        wants = ctx.needs_input_grad[:4]
        tensors = (outputs, biases, weight, bias_weight)
        grads = [
            torch.zeros_like(t, dtype=torch.float32 if i > 1 else t.dtype) if want and t.numel() else None
            for i, (t, want) in enumerate(zip(tensors, wants, strict=True))
        ]
        loss = outputs.new_zeros((), dtype=torch.float32)
        size = max(CHUNK_LOGITS // weight.shape[0], 1)
        for start in range(0, len(outputs), size):
            part = slice(start, start + size)
            value, slopes, scale = _chunk(
                _logits(outputs[part], biases[part], weight, bias_weight),
                ids[part],
                probs[part],
                shares[part],
                tv_weight,
            )
            loss += value
            for rows, matrix, to_rows, to_matrix in (
                (outputs[part], weight, grads[0], grads[2]),
                (biases[part], bias_weight, grads[1], grads[3]),
            ):
                if to_rows is not None:
                    to_rows[part] = (slopes @ matrix) * scale
                if to_matrix is not None:
                    to_matrix += slopes.t() @ (rows * scale)
        ctx.grads = [g if g is None else g.to(t.dtype) for g, t in zip(grads, tensors, strict=True)]
        return loss

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        return *(g if g is None else g * above[0].to(g.dtype) for g in ctx.grads), None, None, None, None


def _logits(outputs: Tensor, biases: Tensor, weight: Tensor, bias_weight: Tensor) -> Tensor:
    logits = torch.nn.functional.linear(outputs, weight)
    return logits.addmm_(biases, bias_weight.t()) if biases.shape[1] else logits


def _chunk(
    logits: Tensor, ids: Tensor, probs: Tensor, shares: Tensor, tv_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and the logits' gradients [N, W] but for a factor [N, 1] per row.

    With q the draft's law, t the target's, c the sum of t, S where q < t and A the draft's mass there, the gradients of
    the two losses by logit v are c q_v - t_v and (A - 1[v in S]) q_v.
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
