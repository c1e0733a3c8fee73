"""Optimal transport at one node, on drafts of small support and at most two siblings: the step that two rules share.

Given the drafted siblings T, accept y in T with probability pi(T, y) / Pr(T), pi a maximum flow from all the pairs that
might have been drafted (supply Pr(T)) to the tokens (demand P[y]); else draw from `res(P - sum_T pi(T, .))`, which is
the same for all T. No rule accepts more at one node (Sun et al. 2023, SpecTr, section 4; Khisti et al. 2025).

The flow has m(m + 1)/2 pairs for a draft distribution of m tokens, so these rules serve truncated drafts
(`truncate_probs`). Both admit i.i.d. siblings and draws without replacement, of widths fixed before the first draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from treespec.tree import IID, WITHOUT_REPLACEMENT
from treespec.verification.flow import best_transport, pair_supply
from treespec.verification.requirements import Requirements

MAX_SUPPORT = 20

TRANSPORT_REQUIREMENTS = Requirements(
    frozenset({IID, WITHOUT_REPLACEMENT}), needs_fixed_width=True, max_siblings=2, max_support=MAX_SUPPORT
)


def transport_siblings(tree: Any, children: Sequence[int], weights: Any) -> tuple[list[Any], Any]:
    """Transport one or two siblings to the demands of their parent.

    Args:
        tree: a `VerifiableTree` none of whose children are point masses.
        children: the ids of all children of one node, in drawing order.
        weights: the demands, an array [V].

    Returns:
        Each child's probability of acceptance given that its earlier siblings were rejected, and the weights [V] that
        are left when all are.
    """
    tokens = [tree.token(child) for child in children]
    draft_probs = tree.draft_probs_of(children[0])
    support = _support(draft_probs)
    draft, demand = draft_probs[support].tolist(), weights[support].tolist()
    total = sum(draft)  # One but for the rounding of float32.
    draft = [prob / total for prob in draft]
    if len(children) == 1:
        i = support.index(tokens[0])
        taken = [min(d, q) for d, q in zip(demand, draft, strict=True)]  # In this order NaN stays NaN.
        return [taken[i] / draft[i]], _less(weights, support, taken)
    # A second draw that could not have been the first token again was one without replacement.
    supply = pair_supply(draft, is_without_replacement=not tree.draft_probs_of(children[1])[tokens[0]] > 0)
    accepted = best_transport(demand, supply)
    i, j = (support.index(token) for token in tokens)
    first = accepted[i][j] / supply[i][j]
    second = 0 * first if i == j or not first < 1 else min(accepted[j][i] / supply[i][j] / (1 - first), 1)
    return [first, second], _less(weights, support, [sum(row) for row in accepted])


def _support(probs: Any) -> list[int]:
    """Tokens of positive mass."""
    nonzero = probs.nonzero(as_tuple=True) if isinstance(probs, Tensor) else probs.nonzero()
    return nonzero[0].tolist()


def _less(weights: Any, support: Sequence[int], taken: Sequence[Any]) -> Any:
    """`(weights - taken)+`, an array [V]; `taken` holds the support's entries."""
    rest = weights.clip(min=0)  # Copies, on every kind of array.
    for token, mass in zip(support, taken, strict=True):
        rest[token] = max(rest[token] - mass, 0)
    return rest
