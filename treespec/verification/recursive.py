"""Recursive rejection: siblings are verified one after another, each against the residual that the last one left.

One function covers most of the literature, which differs only in the distribution that each child was drawn from:
i.i.d. siblings (SpecInfer, Miao et al. 2024, algorithm 2), without replacement (Sequoia, Chen et al. 2024, algorithm
2; RSD, Jeon et al. 2024, algorithm 1), selected (EAGLE-2, Medusa-style top-k, n-grams), several drafters, mixed.
On a chain it is the rule of speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).
"""

from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import likelihood_ratio, residual_weights, walk_down


@dataclass(frozen=True)
class RecursiveRejection(BaseRule):
    """Accept child i with probability `min(1, P[x_i] / q_i[x_i])`, else continue with `P = res((P - q_i)+)`.

    For every tree, however its children were chosen and however it grew.
    """

    name = "recursive"
    is_lossless = True
    requirements = Requirements()

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, verify_by_rejection)


@dataclass(frozen=True)
class TokenVerification(RecursiveRejection):
    """Accept token i with probability `min(1, P[x_i] / q_i[x_i])`; at the first rejection draw from `res((P - q_i)+)`.

    For chains, selected or sampled.
    """

    name = "token"
    requirements = Requirements(is_chain_only=True)


def verify_by_rejection(tree: VerifiableTree, node: int, probs: Any, rng: RandomSource) -> tuple[int | None, Any]:
    """A `VerifyChildren`: in order, each child against the residual distribution [V] after the one before."""
    for child in tree.children(node):
        token = tree.token(child)
        draft_probs = tree.draft_probs_of(child)
        if rng.flip(child, min(likelihood_ratio(probs, draft_probs, token), 1)):  # min(1, NaN) would be 1.
            return child, probs
        rest = residual_weights(probs, draft_probs, token)
        total = rest.sum()
        # In exact arithmetic a rejection leaves mass; where rounding leaves none, the distribution before it stands.
        probs = rest / total if total > 0 else probs
    return None, probs
