"""Traversal verification: subtrees are judged before their own roots, from the leaves up (Weng et al. 2025).

Block verification for trees. Its invariant is also its proof: `visit(v, a)` accepts inside v's subtree with probability
exactly a, averaged over the drawing of that subtree, and what follows v then has v's target distribution.

On trees of a fixed shape it was never below recursive rejection in a thousand random pairs of distributions. Where the
growth looks at drawn tokens it stays lossless but may accept a few per cent less
(tests/verification/test_acceptance.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.requirements import BaseRule, Requirements
from treespec.verification.steps import likelihood_ratio, residual_weights
from treespec.verification.walks import Candidate, walk_up


@dataclass(frozen=True)
class Traversal(BaseRule):
    """Enter child i with mass `min(1, a * distribution[x_i] / q_i[x_i])`; after its rejection `w = (a * distribution -
    q_i)+`.

    Then `a = S / (S + (1 - a))` and `distribution = w / S` with `S = sum(w)`; a node whose children were all rejected
    is accepted with probability a. Admits every family, shape and way of growing; on chains it is block verification.
    """

    name = "traversal"
    is_lossless = True
    requirements = Requirements()

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_up(tree, target_probs, rng, _candidates)


def _candidates(tree: VerifiableTree, node: int, mass: Any, probs: Any) -> Iterator[Candidate]:
    for child in tree.children(node):
        token, draft_probs, weights = tree.token(child), tree.draft_probs_of(child), mass * probs
        yield Candidate(child, min(likelihood_ratio(weights, draft_probs, token), 1))
        rest = residual_weights(weights, draft_probs, token)
        total = rest.sum()
        if total == 0:
            # Nothing is left below a rejected child. The root, never flipped, emits from the distribution before the
            # rejection.
            mass = 0
            break
        mass, probs = total / (total + (1 - mass)), rest / total
    yield Candidate(node, mass, probs)
