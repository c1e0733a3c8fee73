"""Recursive rejection: siblings are judged one after another, each against the residual that the last one left.

One function is most of the literature; the instances differ in the distribution that each child was drawn from only:
i.i.d. siblings (SpecInfer, Miao et al. 2024, algorithm 2), without replacement (Sequoia, Chen et al. 2024, algorithm
2; RSD, Jeon et al. 2024, algorithm 1), selected (EAGLE-2, Medusa-style top-k, n-grams), several drafters, mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.requirements import BaseRule, Requirements
from treespec.verification.steps import likelihood_ratio, residual_weights
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class RecursiveRejection(BaseRule):
    """Accept child i with probability `min(1, distribution[x_i] / q_i[x_i])`, else go on with `distribution =
    res((distribution - q_i)+)`.

    Admits every family, shape and way of growing.
    """

    name = "recursive"
    is_lossless = True
    requirements = Requirements()

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, judge_by_rejection)


def judge_by_rejection(tree: VerifiableTree, node: int, probs: Any, rng: RandomSource) -> tuple[int | None, Any]:
    """The children of one node, each against what the last one left of the distribution [V]: see `walk_down`."""
    for child in tree.children(node):
        token, draft_probs = tree.token(child), tree.draft_probs_of(child)
        if rng.flip(child, min(likelihood_ratio(probs, draft_probs, token), 1)):
            return child, probs
        rest = residual_weights(probs, draft_probs, token)
        total = rest.sum()
        # In exact arithmetic a rejection leaves mass; where rounding leaves none, the distribution before it stands.
        probs = rest / total if total > 0 else probs
    return None, probs
