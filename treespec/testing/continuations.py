"""Sampled text against its exact distribution: probabilities of every possible continuation, and a G-test of counts."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import ConfigError
from treespec.testing.trees import Context

MIN_EXPECTED = 5
"""Cells that expect fewer are pooled."""
_Outcome = TypeVar("_Outcome", bound=Hashable)
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
        rows = next_probs(list(begun)).double()
        # Rows that were rounded to float32 do not sum to one.
        for context, row in zip(begun, rows / rows.sum(-1, keepdim=True), strict=True):
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


class FirstToken:
    """A logits processor that makes the first new token of every text known: drafts, which follow it, begin alike.

    Args:
        texts: of at least two tokens: prompts, padded to one length on the left, and the token that follows. Of texts
            with the same last token of the prompt the last one counts.
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self._length, self._tokens = max(map(len, texts)) - 1, {text[-2]: text[-1] for text in texts}

    def __call__(self, ids: Int[Tensor, "M L"], scores: Float[Tensor, "M V"]) -> Float[Tensor, "M V"]:
        if ids.shape[1] > self._length:
            return scores
        forced = torch.tensor([[self._tokens[token]] for token in ids[:, -1].tolist()], device=scores.device)
        return torch.full_like(scores, -torch.inf).scatter(1, forced, 0.0)


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


def g_test(counts: Mapping[_Outcome, int], probs: Mapping[_Outcome, float], num_groups: int = 1) -> float:
    """The p-value of counted outcomes under exact probabilities that sum to one.

    Cells that expect fewer than five are pooled; an outcome of probability zero, or none, that came gives zero.
    `num_groups` is how many sums of the counts were fixed beforehand: one, or one for each context where several
    share a test.

    Raises `ConfigError`: the probabilities do not sum to one.
    """
    from scipy.stats import chi2, power_divergence  # Here, as it takes long to import.

    share = np.array(list(probs.values()), dtype=float)
    if not np.isclose(share.sum(), 1, atol=1e-6):
        raise ConfigError(f"the probabilities of all outcomes must sum to one, got {share.sum()}")
    if any(count and not probs.get(outcome) for outcome, count in counts.items()):
        return 0.0
    observed = np.array([counts.get(outcome, 0) for outcome in probs], dtype=float)
    expected = share / share.sum() * observed.sum()
    is_small = expected < MIN_EXPECTED
    observed, expected = (np.append(x[~is_small], x[is_small].sum()) for x in (observed, expected))
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(expected) <= num_groups:
        return 1.0
    # Rounding may make G of equal counts negative, where `power_divergence` has no p-value.
    g = max(float(power_divergence(observed, expected, lambda_="log-likelihood").statistic), 0.0)
    return float(chi2.sf(g, len(expected) - num_groups))
