"""The two orders in which rules judge the nodes of a tree: from the root down, and from the leaves up.

A rule says how the children of one node are judged. Neither walk asks for a target distribution that it can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict

JudgeChildren = Callable[[VerifiableTree, int, Any, RandomSource], tuple[int | None, Any]]
"""Given a tree, a node with children, its target distribution [V] and a random source: the child that is accepted, or
None and the
weights [V] that the next token is drawn from. (Beside a child the weights mean nothing.)"""


def walk_down(tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource, judge: JudgeChildren) -> Verdict:
    """Accept one of the root's children, then one of its own, as far as it goes."""
    path = [0]
    while True:
        node = path[-1]
        probs, is_leaf = target_probs(node), not tree.children(node)
        child, weights = (None, probs) if is_leaf else judge(tree, node, probs, rng)
        if child is None:
            return Verdict(tuple(path), rng.pick(node, weights), is_bonus=is_leaf)
        path.append(child)


class Candidate(NamedTuple):
    """A node with the mass that it is entered with, or that is left for it once all its children were rejected."""

    node: int
    mass: Any
    weights: Any | None = None
    """[V], what the token after it is drawn from: given once its children were rejected, and at no leaf."""


Candidates = Callable[[VerifiableTree, int, Any, Any], Iterator[Candidate]]
"""Given a tree, a node with children, the mass that it is entered with and its target distribution [V]: the children in
turn,
each one asked for once the last one was rejected, and in the end the node itself."""


def walk_up(tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource, candidates: Candidates) -> Verdict:
    """Judge every subtree before its own root, which is accepted with the mass that the subtree leaves to it.

    No distribution is asked for in a subtree that is entered with mass zero. The root is never flipped.
    """

    def enter(node: int, mass: Any) -> Iterator[Candidate]:
        if not tree.children(node):
            return iter([Candidate(node, mass)])
        return candidates(tree, node, mass, target_probs(node))

    path, waiting = [0], [enter(0, 1)]
    while True:
        node, mass, weights = next(waiting[-1])
        if node != path[-1]:
            # Mass zero accepts nothing. (Not `> 0`: NaN must go on to a decision, which raises.)
            if mass != 0:
                path.append(node)
                waiting.append(enter(node, mass))
        elif len(path) == 1 or rng.flip(node, mass):
            probs = target_probs(node) if weights is None else weights
            return Verdict(tuple(path), rng.pick(node, probs), is_bonus=weights is None)
        else:
            path.pop()
            waiting.pop()
