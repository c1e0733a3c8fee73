"""Whether a batch holds drafted trees and distributions: flags on the device, and the errors that they stand for."""

from __future__ import annotations

from torch import Tensor

from treespec.checks import are_distributions
from treespec.errors import InvalidTreeError, LogitsError
from treespec.tree import PADDING_PARENT, TreeBatch


def is_drafted_tree(trees: TreeBatch, vocab_size: int) -> Tensor:
    """bool []: the trees are valid and every drafted token is one of the vocabulary's."""
    is_inside = (trees.tokens >= 0) & (trees.tokens < vocab_size)
    return trees.is_valid & (is_inside | (trees.parents < 0)).all()


def is_distribution(trees: TreeBatch, target_probs: Tensor) -> Tensor:
    """bool []: every node's target distribution is one."""
    return (are_distributions(target_probs) | (trees.parents == PADDING_PARENT)).all()


def check_flags(is_tree: int | bool, is_distribution: int | bool) -> None:
    """Raise for flags that have come to the host and are not set.

    Raises:
        InvalidTreeError, LogitsError: see `decode`.
    """
    if not is_distribution:
        raise LogitsError(
            "a target distribution holds NaN or infinity, or does not sum to one: check the logits, the "
            "model's weights and "
            "dtype, and the logits processors"
        )
    if not is_tree:
        raise InvalidTreeError(
            "the batch holds an invalid tree: a child before its parent, a distribution that does not sum to "
            "one, a drawn token "
            "of probability zero, or a token outside the target's vocabulary"
        )
