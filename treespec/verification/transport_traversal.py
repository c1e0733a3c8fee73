"""Transport traversal: optimal transport at every node of a tree that is judged from the leaves up.

See `transport` for what it admits and costs, `traversal` for the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import TreeBatch, Verdict
from treespec.verification.admission import check_admission
from treespec.verification.transport import TRANSPORT_ADMISSION, transport_siblings


@dataclass(frozen=True)
class TransportTraversal:
    """From the leaves up, as in traversal: a node entered with mass a transports its siblings to the demands `a P`.

    The siblings are entered with their conditional mass `f_i / (1 - f_1 - .. - f_(i-1))`, `f_i = pi(T, x_i) / Pr(T)`;
    after all were rejected `w = (a P - sum_T pi)+`, `S = sum(w)`, and the node itself is accepted with probability
    `S / (S + (1 - a))` and followed by `w / S`.
    """

    name = "transport_traversal"
    is_lossless = True
    admission = TRANSPORT_ADMISSION

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree; asks for the target law of no subtree that is entered with mass zero."""
        visits = [_enter(0, 1, tree, target_law)]
        while True:
            visit = visits[-1]
            if visit.waiting:
                child, child_mass = visit.waiting.pop()
                # Mass zero accepts nothing. (Not `> 0`: NaN must go on to a decision, which raises.)
                if child_mass != 0:
                    visits.append(_enter(child, child_mass, tree, target_law))
            elif len(visits) == 1 or chooser.flip(visit.node, visit.mass):
                law = target_law(visit.node) if visit.law is None else visit.law
                path = tuple(v.node for v in visits)
                return Verdict(path, chooser.pick(visit.node, law), is_bonus=visit.law is None)
            else:
                visits.pop()


@dataclass(frozen=True)
class _Visit:
    """An entered node: its children with the masses they are entered with, the first one last, and the mass and the law
    (None at a leaf) that are left for the node itself when all of them are rejected."""

    node: int
    mass: Any
    law: Any | None
    waiting: list[tuple[int, Any]]


def _enter(node: int, mass: Any, tree: VerifiableTree, target_law: TargetLaw) -> _Visit:
    children = tree.children(node)
    if not children:
        return _Visit(node, mass, None, [])
    law = target_law(node)
    child_masses, rest = transport_siblings(tree, children, mass * law)
    waiting = list(reversed(list(zip(children, child_masses, strict=True))))
    total = rest.sum()
    if total == 0:
        # Nothing is left below rejected children. The root, never flipped, emits from its own law.
        return _Visit(node, 0, law, waiting)
    return _Visit(node, total / (total + (1 - mass)), rest, waiting)
