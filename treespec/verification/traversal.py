"""Traversal verification: subtrees are judged before their own roots, from the leaves up (Weng et al. 2025).

Block verification for trees. Its invariant is also its proof: `visit(v, a)` accepts inside v's subtree with probability
exactly a, averaged over the drawing of that subtree, and what follows v then has v's target law.

On trees of a fixed shape it was never below recursive rejection in a thousand random pairs of laws. Where the growth
looks at drawn tokens it stays lossless but may accept a few per cent less (tests/verification/test_acceptance.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import TreeBatch, Verdict
from treespec.verification.admission import Admission, check_admission
from treespec.verification.steps import likelihood_ratio, residual_weights


@dataclass(frozen=True)
class Traversal:
    """Enter child i with mass `min(1, a * law[x_i] / q_i[x_i])`; after its rejection `w = (a * law - q_i)+`.

    Then `a = S / (S + (1 - a))` and `law = w / S` with `S = sum(w)`; a node whose children were all rejected is
    accepted with probability a. Admits every family, shape and way of growing; on chains it is block verification.
    """

    name = "traversal"
    is_lossless = True
    admission = Admission()

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree from its leaves up; asks for the target law of no subtree that is entered with mass zero."""
        visits = [_enter(0, 1, tree, target_law)]
        while True:
            visit = visits[-1]
            if visit.waiting:
                child = visit.waiting.pop()
                visit.child = _Child(tree.token(child), tree.law(child), visit.mass * visit.law)
                child_mass = min(likelihood_ratio(visit.child.weights, visit.child.draft_law, visit.child.token), 1)
                # Mass zero accepts nothing. (Not `> 0`: NaN must go on to a decision, which raises.)
                if child_mass != 0:
                    visits.append(_enter(child, child_mass, tree, target_law))
                    continue
            else:
                if len(visits) == 1 or chooser.flip(visit.node, visit.mass):
                    law = target_law(visit.node) if visit.law is None else visit.law
                    path = tuple(v.node for v in visits)
                    return Verdict(path, chooser.pick(visit.node, law), is_bonus=visit.law is None)
                visits.pop()
            visits[-1].reject()


class _Child(NamedTuple):
    """A child being judged: its token and law, and the weights `a * law` [V] that it was entered with."""

    token: int
    draft_law: Any | None
    weights: Any


@dataclass
class _Visit:
    """An entered node: its mass, its law (None at a leaf), the children not yet judged, and the one being judged."""

    node: int
    mass: Any
    law: Any | None
    waiting: list[int]
    child: _Child | None = None

    def reject(self) -> None:
        """What is left of the node's mass and law when the child being judged was rejected."""
        assert self.child is not None, "a child was entered before it is rejected"
        rest = residual_weights(self.child.weights, self.child.draft_law, self.child.token)
        total = rest.sum()
        if total == 0:
            # Nothing is left below a rejected child. The root, never flipped, emits from the law before the rejection.
            self.mass, self.waiting = 0, []
        else:
            self.mass, self.law = total / (total + (1 - self.mass)), rest / total


def _enter(node: int, mass: Any, tree: VerifiableTree, target_law: TargetLaw) -> _Visit:
    """A leaf's law is asked for only once the leaf is accepted."""
    children = tree.children(node)
    return _Visit(node, mass, target_law(node) if children else None, list(reversed(children)))
