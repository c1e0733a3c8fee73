"""The two steps that every lossless rule is made of, on torch, numpy and rational arrays alike.

`draft_probs` is an array [V], or None for a point mass at `token` (a child selected deterministically).
"""

from __future__ import annotations

from typing import Any

from treespec.errors import InvalidTreeError


def likelihood_ratio(probs: Any, draft_probs: Any | None, token: int) -> Any:
    """`distribution[token] / draft_probs[token]`, a scalar.

    Raises:
        InvalidTreeError: the draft distribution gives the drawn token no probability, so it cannot have been drawn from
            it.
    """
    if draft_probs is None:
        return probs[token]
    if not draft_probs[token] > 0:
        raise InvalidTreeError(
            f"token {token} was drafted, but its stored draft distribution gives it probability "
            f"{float(draft_probs[token])}: "
            "store the distribution that was really sampled from, after the draft model's own processors"
        )
    return probs[token] / draft_probs[token]


def residual_weights(weights: Any, draft_probs: Any | None, token: int) -> Any:
    """`(weights - draft_probs)+`, an array [V], not normalised (Leviathan et al. 2023, equation 3)."""
    if draft_probs is not None:
        return (weights - draft_probs).clip(min=0)
    rest = weights.clip(min=0)  # Copies, on every kind of array; the weights are at most one, the point mass is one.
    rest[token] = 0
    return rest
