"""The two steps that every lossless rule is made of, on torch, numpy and rational arrays alike.

`draft_law` is an array [V], or None for a point mass at `token` (a child selected deterministically).
"""

from __future__ import annotations

from typing import Any

from treespec.errors import InvalidTreeError


def likelihood_ratio(law: Any, draft_law: Any | None, token: int) -> Any:
    """`law[token] / draft_law[token]`, a scalar.

    Raises:
        InvalidTreeError: the draft law gives the drawn token no probability, so it cannot have been drawn from it.
    """
    if draft_law is None:
        return law[token]
    if not draft_law[token] > 0:
        raise InvalidTreeError(
            f"token {token} was drafted, but its stored proposal law gives it probability {float(draft_law[token])}: "
            "store the law that was really sampled from, after the draft model's own processors"
        )
    return law[token] / draft_law[token]


def residual_weights(weights: Any, draft_law: Any | None, token: int) -> Any:
    """`(weights - draft_law)+`, an array [V], not normalised (Leviathan et al. 2023, equation 3)."""
    if draft_law is not None:
        return (weights - draft_law).clip(min=0)
    rest = weights.clip(min=0)  # Copies, on every kind of array; the weights are at most one, the point mass is one.
    rest[token] = 0
    return rest
