"""Traversal verification: subtrees are judged before their own roots, from the leaves up (Weng et al. 2025).

Block verification for trees. Its invariant is also its proof: `visit(v, a)` accepts inside v's subtree with probability
exactly a, averaged over the drawing of that subtree, and what follows v then has v's target law.

On trees of a fixed shape it was never below recursive rejection in a thousand random pairs of laws. Where the growth
looks at drawn tokens it stays lossless but may accept a few per cent less (tests/verification/test_acceptance.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
        verdict = _visit(0, 1, (0,), tree, target_law, chooser)
        assert verdict is not None, "the root is always accepted"
        return verdict


def _visit(
    node: int, mass: Any, path: tuple[int, ...], tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser
) -> Verdict | None:
    """Judge the subtree of `node` (the last of `path`), entered with `mass`; None: nothing in it is accepted."""
    children = tree.children(node)
    is_root = node == 0
    # A leaf's law is asked for only once the leaf is accepted.
    law = target_law(node) if children else None
    for child in children:
        token, draft_law = tree.token(child), tree.law(child)
        weights = mass * law
        child_mass = min(likelihood_ratio(weights, draft_law, token), 1)
        # Mass zero accepts nothing. (Not `> 0`: NaN must go on to a decision, which raises.)
        verdict = None if child_mass == 0 else _visit(child, child_mass, (*path, child), tree, target_law, chooser)
        if verdict is not None:
            return verdict
        rest = residual_weights(weights, draft_law, token)
        total = rest.sum()
        if not total > 0:
            # Nothing is left below a rejected child. The root emits from the law before the rejection.
            return Verdict(path, chooser.pick(node, law), is_bonus=False) if is_root else None
        mass, law = total / (total + (1 - mass)), rest / total
    if is_root or chooser.flip(node, mass):
        return Verdict(path, chooser.pick(node, target_law(node) if law is None else law), is_bonus=not children)
    return None
