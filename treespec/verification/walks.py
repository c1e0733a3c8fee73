"""The two orders in which rules visit the nodes of a tree, and the two steps that the lossless ones are made of.

Both compute a node's target distribution only when a decision needs it. All of it runs on torch, numpy and rational
arrays alike: `Any` stands for such an array or scalar.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from treespec.errors import InvalidTreeError
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict

VerifyChildren = Callable[[VerifiableTree, int, Any, RandomSource], tuple[int | None, Any]]
"""Given a tree, a node with children, its target distribution [V] and a random source: the accepted child, or None and
the weights [V] that the next token is drawn from. (With an accepted child the weights are not used.)"""


def walk_down(
    tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource, verify_children: VerifyChildren
) -> Verdict:
    """From the root: accept one of the node's children, then one of that child's, until none is accepted."""
    path = [0]
    while True:
        node = path[-1]
        probs = target_probs(node)
        is_leaf = not tree.children(node)
        child, weights = (None, probs) if is_leaf else verify_children(tree, node, probs, rng)
        if child is None:
            return Verdict(tuple(path), rng.pick(node, weights), is_bonus=is_leaf)
        path.append(child)


class Visit(NamedTuple):
    """A node, and the mass with which it is entered or, once all its children were rejected, accepted."""

    node: int
    mass: Any
    weights: Any | None = None
    """[V], what the token after the node is drawn from: once its children were rejected; None at a leaf."""


Visits = Callable[[VerifiableTree, int, Any, Any], Iterator[Visit]]
"""Given a tree, a node with children, the mass that it is entered with and its target distribution [V]: yields the
children in order, each after the one before was rejected, and finally the node itself."""


def walk_up(tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource, visits: Visits) -> Verdict:
    """From the leaves: every subtree comes before its own root, which is accepted with the mass that is left to it."""

    def enter(node: int, mass: Any) -> Iterator[Visit]:
        if not tree.children(node):
            return iter([Visit(node, mass)])
        return visits(tree, node, mass, target_probs(node))

    path = [0]
    waiting = [enter(0, 1)]
    while True:
        node, mass, weights = next(waiting[-1])
        if node != path[-1]:
            # Mass zero accepts nothing. (Not `> 0`: NaN must reach a decision, which raises.)
            if mass != 0:
                path.append(node)
                waiting.append(enter(node, mass))
        elif len(path) == 1 or rng.flip(node, mass):  # The root is accepted without a coin.
            probs = target_probs(node) if weights is None else weights  # A leaf's is made once it is accepted.
            return Verdict(tuple(path), rng.pick(node, probs), is_bonus=weights is None)
        else:
            path.pop()
            waiting.pop()


def likelihood_ratio(probs: Any, draft_probs: Any | None, token: int) -> Any:
    """`probs[token] / draft_probs[token]`, a scalar; None is a point mass. Raises `InvalidTreeError`: x / 0."""
    if draft_probs is None:
        return probs[token]
    if not draft_probs[token] > 0:  # Not `<= 0`: NaN raises too.
        raise InvalidTreeError(
            f"token {token} was drafted, and its stored draft distribution gives it {float(draft_probs[token])}: store "
            "the distribution that was really sampled from, after the draft model's own processors"
        )
    return probs[token] / draft_probs[token]


def residual_weights(weights: Any, draft_probs: Any | None, token: int) -> Any:
    """`(weights - draft_probs)+`, an array [V], not normalised (Leviathan et al. 2023, equation 3)."""
    if draft_probs is not None:
        return (weights - draft_probs).clip(min=0)
    # A weight is at most one, so nothing is left at the token itself. `clip` copies every kind of array.
    rest = weights.clip(min=0)
    rest[token] = 0
    return rest
