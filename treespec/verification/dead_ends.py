"""Nodes after which the target has no distribution: what was drafted below them is cut off, for every rule.

A logits processor may forbid every token after a text that plain decoding never asks about: one that it forbids itself,
or one that has ended. Such a node can be accepted, as the distribution before it decides that, but no token follows it
in this step. Whether a node's children are cut off depends on its own text alone, so every rule stays lossless.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree, VerificationRule
from treespec.tree import Path, Verdict

HasProbs = Callable[[int], bool]
"""Whether the target has a distribution after a node. Nobody asks about roots: their text is kept, so it must have."""


def verify_cut(
    rule: VerificationRule, tree: VerifiableTree, target_probs: NodeProbs, has_probs: HasProbs, rng: RandomSource
) -> Verdict:
    """`rule.verify` on the tree without what is below dead ends; `target_probs` is not called for these."""
    cut = _CutTree(tree, has_probs)
    # The root's distribution stands in at dead ends; tokens drawn from it are never used.
    verdict = rule.verify(cut, lambda node: target_probs(node if cut.is_alive(node) else 0), rng)
    return verdict if cut.is_alive(verdict.path[-1]) else before_end(tree, verdict.path)


def before_end(tree: VerifiableTree, path: Path) -> Verdict:
    """The verdict for an accepted path to a dead end: the path before it, which its token follows.

    So that text is the next step's root, unless generation stops with it.
    """
    return Verdict(path[:-1], tree.token(path[-1]), is_bonus=False)


@dataclass(frozen=True)
class _CutTree:
    """A `VerifiableTree` whose dead ends have no children."""

    tree: VerifiableTree
    has_probs: HasProbs

    def is_alive(self, node: int) -> bool:
        return node == 0 or self.has_probs(node)

    @property
    def num_nodes(self) -> int:
        return self.tree.num_nodes

    def children(self, node: int) -> Sequence[int]:
        children = self.tree.children(node)
        return children if children and self.is_alive(node) else ()  # Asking about a leaf would compute its scores.

    def token(self, node: int) -> int:
        return self.tree.token(node)

    def draft_probs_of(self, node: int) -> Any | None:
        return self.tree.draft_probs_of(node)
