"""Transport traversal: optimal transport at every node of a tree that is judged from the leaves up.

See `transport` for what it admits and costs, `traversal` for the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.requirements import BaseRule
from treespec.verification.transport import TRANSPORT_REQUIREMENTS, transport_siblings
from treespec.verification.walks import Candidate, walk_up


@dataclass(frozen=True)
class TransportTraversal(BaseRule):
    """From the leaves up, as in traversal: a node entered with mass a transports its siblings to the demands `a P`.

    The siblings are entered with their conditional mass `f_i / (1 - f_1 - .. - f_(i-1))`, `f_i = pi(T, x_i) / Pr(T)`;
    after all were rejected `w = (a P - sum_T pi)+`, `S = sum(w)`, and the node itself is accepted with probability
    `S / (S + (1 - a))` and followed by `w / S`.
    """

    name = "transport_traversal"
    is_lossless = True
    requirements = TRANSPORT_REQUIREMENTS

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_up(tree, target_probs, rng, _candidates)


def _candidates(tree: VerifiableTree, node: int, mass: Any, probs: Any) -> Iterator[Candidate]:
    children = tree.children(node)
    masses, rest = transport_siblings(tree, children, mass * probs)
    yield from map(Candidate, children, masses)
    total = rest.sum()
    # Where nothing is left below rejected children, the root, never flipped, emits from its own distribution.
    yield Candidate(node, 0, probs) if total == 0 else Candidate(node, total / (total + (1 - mass)), rest)
