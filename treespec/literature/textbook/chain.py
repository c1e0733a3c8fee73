"""The textbook algorithm on torch tensors, numpy arrays or nested lists, for D draft tokens and a vocabulary V.

Random numbers come from `generator=`, or else from the global state of the library that the arrays belong to (lists
count as numpy): for every token first the coin, then, if it is needed, the token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from treespec.errors import ConfigError
from treespec.literature.textbook.inputs import Array, Chain, read_chain, read_vector, to_numpy

Generator = torch.Generator | np.random.Generator


def speculative_decode(
    target_probs: Array, draft_probs: Array, draft_tokens: Array, *, generator: Generator | None = None
) -> list[int]:
    """Token verification without a bonus token (Leviathan et al. 2023, algorithm 1).

    Token i is kept with probability min(1, target/draft); the first rejected one is replaced by a draw from the
    normalised residual (target - draft)+ and ends the round. Where the residual has no mass, which only rounding can
    bring about, the draw is from the target distribution.

    Both distributions are float [D, V], the draft's the ones that the tokens, int [D], were really drawn from; a torch
    generator is on the arrays' device. Returns 1 to D tokens.

    Raises `ConfigError`: shapes that do not fit, invalid distributions, or a draft token of draft probability zero.
    """
    chain = read_chain(target_probs, draft_probs, draft_tokens, extra_rows=(0,))
    if not chain.tokens:
        raise ConfigError("speculative_decode needs at least one draft token, got none")
    return _verify(chain, _chance(chain, generator))[0]


def speculative_decoding_verify(
    draft_tokens: Array, draft_probs: Array, target_probs: Array, vocab_size: int, *, generator: Generator | None = None
) -> list[int]:
    """Token verification with a bonus token (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

    As `speculative_decode`, and when *every* draft token was kept and `target_probs` is [D + 1, V], one token is drawn
    from its last row. Counting the appended tokens instead (`len(output) == D`) would also add a bonus token after the
    last draft token was rejected and replaced: its row is conditioned on the rejected token, so that form is biased.

    Returns 1 to D + 1 tokens; none when D = 0 and there is no extra row.
    Raises `ConfigError`: see `speculative_decode`; also when `vocab_size` is not V.
    """
    chain = read_chain(target_probs, draft_probs, draft_tokens, extra_rows=(0, 1), vocab_size=vocab_size)
    return _verify(chain, _chance(chain, generator))[0]


def simulate_round(draft_probs: Array, target_probs: Array, draft_tokens: Array, random_coins: Array) -> dict[str, Any]:
    """One round with given coins and no other randomness: where a token would be drawn, the most probable one is taken.

    Token i is kept when its coin is strictly below target/draft, a quotient of floats (in `explain_round` an equal coin
    keeps it too). The first rejected one is replaced by the argmax of the residual (target - draft)+; when all are kept
    and there is a row more, the argmax of the last target row follows as bonus. Good for following the algorithm by
    hand; the distribution of its output is *not* the target's, which needs draws.

    Returns `accepted_tokens`: the kept draft tokens, then the replacement or the bonus token; `num_generated`: how many
    those are; `acceptance_rate`: kept draft tokens / D, rounded to 4 decimals (0.0 when D = 0).
    Raises `ConfigError`: see `speculative_decode`; also for coins that are not D numbers in [0, 1].
    """
    chain = read_chain(target_probs, draft_probs, draft_tokens, extra_rows=(0, 1))
    coins = iter(read_vector(random_coins, "random_coins", len(chain.tokens)))
    tokens, num_accepted = _verify(chain, _Chance(lambda: next(coins), lambda weights: int(weights.argmax())))
    rate = num_accepted / len(chain.tokens) if len(chain.tokens) else 0.0
    return {"accepted_tokens": tokens, "num_generated": len(tokens), "acceptance_rate": round(rate, 4)}


@dataclass(frozen=True)
class TokenExplanation:
    """The outcome of one draft token: `verdict` is "accepted", "rejected" or "discarded" (stands after a rejection)."""

    index: int
    target_prob: float
    draft_prob: float
    ratio: float
    coin: float
    verdict: str
    reason: str


@dataclass(frozen=True)
class RoundExplanation:
    """A round, token by token; `str()` gives it as text.

    Sources differ in what "appended" counts: `num_appended_with_replacement` counts the residual token that replaces a
    rejected one. Neither number counts a bonus token, whose distribution is not among the inputs.
    """

    steps: tuple[TokenExplanation, ...]
    num_appended: int
    num_appended_with_replacement: int

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens; the same number as `num_appended`."""
        return self.num_appended

    def __str__(self) -> str:
        lines = [
            f"token {s.index}: target {s.target_prob:.6g}, draft {s.draft_prob:.6g}, ratio {s.ratio:.6g}, "
            f"coin {s.coin:.6g}: {s.verdict}, {s.reason}"
            for s in self.steps
        ]
        end = f"no token was rejected: {self.num_appended} appended under both readings, before any bonus token"
        if self.num_appended < len(self.steps):
            end = (
                f"a rejected token that is not replaced: {self.num_appended} appended; replaced by a residual token: "
                f"{self.num_appended_with_replacement} appended"
            )
        return "\n".join([*lines, f"{self.num_accepted} of {len(self.steps)} draft tokens accepted; {end}."])


def explain_round(target_token_probs: Array, draft_token_probs: Array, coins: Array) -> RoundExplanation:
    """Why each draft token of a round is accepted or rejected, and how many tokens are appended.

    A token with target >= draft is accepted whatever its coin; another one is rejected only if its coin is *greater*
    than target/draft. The comparison is exact on the decimals as written: .06 / .2 is .3, and a coin of .3 accepts.
    Tokens after the first rejected one are discarded without being verified.

    All arguments are float [D]: both models' probabilities of the draft tokens, the draft's positive, coins in [0, 1].

    Raises `ConfigError`: lengths that differ, numbers outside [0, 1], or a draft probability of zero.
    """
    draft = read_vector(draft_token_probs, "draft_token_probs", None)
    target = read_vector(target_token_probs, "target_token_probs", len(draft))
    coin_list = read_vector(coins, "coins", len(draft))
    steps = []
    first_rejected = len(draft)
    for i, (p_target, p_draft, coin) in enumerate(zip(target, draft, coin_list, strict=True)):
        if p_draft == 0:
            raise ConfigError(f"draft_token_probs[{i}] is 0: a token that was drafted has a positive draft probability")
        verdict, reason = _explain(i, p_target, p_draft, coin, first_rejected)
        first_rejected = i if verdict == "rejected" else first_rejected
        steps.append(TokenExplanation(i, p_target, p_draft, p_target / p_draft, coin, verdict, reason))
    return RoundExplanation(tuple(steps), first_rejected, min(first_rejected + 1, len(draft)))


def _explain(index: int, target: float, draft: float, coin: float, first_rejected: int) -> tuple[str, str]:
    ratio = target / draft
    if first_rejected < index:
        return "discarded", f"because token {first_rejected} before it was rejected"
    if target >= draft:
        return "accepted", "because the target's probability is at least the draft's, whatever the coin"
    if Fraction(str(coin)) * Fraction(str(draft)) > Fraction(str(target)):
        return "rejected", f"because the coin {coin:.6g} is greater than the ratio {ratio:.6g}"
    return "accepted", f"because the coin {coin:.6g} is not greater than the ratio {ratio:.6g}"


class _Chance(NamedTuple):
    """Where coins in [0, 1) and tokens (from unnormalised weights [V]) come from."""

    coin: Callable[[], float]
    pick: Callable[[Any], int]


def _verify(chain: Chain, chance: _Chance) -> tuple[list[int], int]:
    """The kept draft tokens and the replacement of the first rejected one or the bonus token; how many were kept."""
    for i, token in enumerate(chain.tokens):
        target, draft = chain.target[i], chain.draft[i]
        ratio = float(target[token]) / float(draft[token])
        coin = chance.coin()
        if not (ratio >= 1 or coin < ratio):
            weights = (target - draft).clip(0)
            return [*chain.tokens[:i], chance.pick(weights if weights.sum() > 0 else target)], i
    bonus = [chance.pick(chain.target[-1])] if chain.has_bonus_row else []
    return chain.tokens + bonus, len(chain.tokens)


def _chance(chain: Chain, generator: Generator | None) -> _Chance:
    if isinstance(generator, np.random.Generator):
        uniform: Callable[[], float] = generator.random
        return _Chance(uniform, lambda weights: _inverse_cdf(weights, uniform()))
    if isinstance(generator, torch.Generator) or (generator is None and isinstance(chain.target, Tensor)):
        device = generator.device if generator is not None else "cpu"
        return _Chance(
            lambda: torch.rand(1, generator=generator, dtype=torch.float32, device=device).item(),
            lambda weights: int(torch.multinomial(torch.as_tensor(weights, device=device), 1, generator=generator)),
        )
    if generator is None:
        return _Chance(np.random.random_sample, lambda weights: _inverse_cdf(weights, np.random.random_sample()))
    raise ConfigError(f"generator must be a torch.Generator or numpy.random.Generator, got {type(generator).__name__}")


def _inverse_cdf(weights: Any, uniform: float) -> int:
    """Scaled by the last sum and searched from the right: an index without mass is never returned."""
    cdf = np.cumsum(to_numpy(weights, "weights"), dtype=np.float64)
    goal = min(uniform * cdf[-1], np.nextafter(cdf[-1], 0))
    return int(np.searchsorted(cdf, goal, side="right"))
