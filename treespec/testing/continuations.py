"""The exact distribution of a few sampled tokens: next-token probabilities after every possible continuation."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.testing.trees import Context

NextProbs = Callable[[Sequence[Context]], Float[Tensor, "M V"]]
"""Maps M continuations of one length to the distributions of the token after each."""


class Continuations(NamedTuple):
    """`joint`: whole continuations and their probabilities; `probs`: after each shorter one that of the next token.

    Tokens and continuations of probability zero are left out.
    """

    joint: dict[Context, float]
    probs: dict[Context, dict[int, float]]


def enumerate_continuations(
    next_probs: NextProbs, length: int, end: int | None = None, least: float = 0.0
) -> Continuations:
    """All continuations of `length` tokens, or shorter ones that `end` closes.

    Those of a probability below `least` are left out too, so that `joint` sums to less than one.
    """
    joint: dict[Context, float] = {}
    probs: dict[Context, dict[int, float]] = {}
    begun: dict[Context, float] = {(): 1.0}
    for step in range(length):
        following: dict[Context, float] = {}
        for context, row in zip(begun, _normalised(next_probs(list(begun))), strict=True):
            tokens = row.nonzero().flatten()
            probs[context] = dict(zip(tokens.tolist(), row[tokens].tolist(), strict=True))
            for token, prob in probs[context].items():
                if (total := begun[context] * prob) >= least:
                    is_whole = token == end or step == length - 1
                    (joint if is_whole else following)[(*context, token)] = total
        begun = following
        if not begun:
            break
    return Continuations(joint, probs)


def uncached(
    model: Callable[..., Any],
    prompt: Int[Tensor, "P"],
    process: Callable[[Any, Any], Tensor] = lambda ids, scores: scores,
) -> NextProbs:
    """A model's distributions after a prompt, by plain passes without a cache.

    `process` is a function of (ids int64 [M, L], scores float32 [M, V]): the call's own logits processors.
    """

    @torch.no_grad()
    def probs(contexts: Sequence[Context]) -> Float[Tensor, "M V"]:
        fresh = torch.tensor(contexts, dtype=torch.int64, device=prompt.device).view(len(contexts), -1)
        ids = torch.cat([prompt.expand(len(contexts), -1), fresh], 1)
        return process(ids, model(ids, use_cache=False).logits[:, -1].float()).softmax(-1)

    return probs


def _normalised(probs: Float[Tensor, "M V"]) -> Float[Tensor, "M V"]:
    """Distributions in float64: rows that were rounded to float32 do not sum to one."""
    exact = probs.double()
    return exact / exact.sum(-1, keepdim=True)
