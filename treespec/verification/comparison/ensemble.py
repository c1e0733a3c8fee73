"""Ensemble verification: the output follows a mixture of target and draft (Fu et al. 2025).

Lossy: the output no longer has the target's distribution, so the rule runs only when it is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.checks import check_share
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import IID, WITHOUT_REPLACEMENT, Verdict
from treespec.verification.recursive import verify_by_rejection
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class EnsembleVerification(BaseRule):
    """Recursive rejection against the ensemble `w P + (1 - w) q` where children were drawn, against P at leaves.

    Fu et al. 2025 (Fast Large Language Model Collaborative Decoding via Speculation). q is the distribution that a
    node's children were drawn from, so the output follows the ensemble on accepted paths; `target_weight` 1 is
    lossless. For i.i.d. siblings and draws without replacement.
    """

    target_weight: Any = 0.5

    name = "ensemble"
    is_lossless = False
    requirements = Requirements(frozenset({IID, WITHOUT_REPLACEMENT}))

    def __post_init__(self) -> None:
        check_share("target_weight", self.target_weight)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        def ensemble_probs(node: int) -> Any:
            children = tree.children(node)
            if not children:
                return target_probs(node)
            return self.target_weight * target_probs(node) + (1 - self.target_weight) * tree.draft_probs_of(children[0])

        return walk_down(tree, ensemble_probs, rng, verify_by_rejection)
