"""Traversal verification: subtrees are judged before their own roots, from the leaves up (Weng et al. 2025).

Block verification for trees. Its invariant is also its proof: `visit(v, a)` accepts inside v's subtree with probability
exactly a, averaged over the drawing of that subtree, and what follows v then has v's target law.

On trees of a fixed shape it was never below recursive rejection in a thousand random pairs of laws. Where the growth
looks at drawn tokens it stays lossless but may accept a few per cent less (tests/verification/test_acceptance.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.admission import Admission, AdmittingRule
from treespec.verification.steps import likelihood_ratio, residual_weights
from treespec.verification.walks import Candidate, walk_up


@dataclass(frozen=True)
class Traversal(AdmittingRule):
    """Enter child i with mass `min(1, a * law[x_i] / q_i[x_i])`; after its rejection `w = (a * law - q_i)+`.

    Then `a = S / (S + (1 - a))` and `law = w / S` with `S = sum(w)`; a node whose children were all rejected is
    accepted with probability a. Admits every family, shape and way of growing; on chains it is block verification.
    """

    name = "traversal"
    is_lossless = True
    admission = Admission()

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        return walk_up(tree, target_law, chooser, _candidates)


def _candidates(tree: VerifiableTree, node: int, mass: Any, law: Any) -> Iterator[Candidate]:
    for child in tree.children(node):
        token, draft_law, weights = tree.token(child), tree.law(child), mass * law
        yield Candidate(child, min(likelihood_ratio(weights, draft_law, token), 1))
        rest = residual_weights(weights, draft_law, token)
        total = rest.sum()
        if total == 0:
            # Nothing is left below a rejected child. The root, never flipped, emits from the law before the rejection.
            mass = 0
            break
        mass, law = total / (total + (1 - mass)), rest / total
    yield Candidate(node, mass, law)
