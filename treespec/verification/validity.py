"""Whether a batch can be verified: flags that stay on the device, and the errors that they stand for."""

from jaxtyping import Bool, Float
from torch import Tensor

from treespec.checks import are_distributions
from treespec.errors import InvalidTreeError, LogitsError
from treespec.tree import PADDING_PARENT, TreeBatch


def is_verifiable(trees: TreeBatch, vocab_size: int) -> Bool[Tensor, ""]:
    """Whether the trees are drafted trees and every drafted token is in the vocabulary."""
    is_inside = (trees.tokens >= 0) & (trees.tokens < vocab_size)
    return trees.is_valid & (is_inside | (trees.parents < 0)).all()


def has_distributions(trees: TreeBatch, target_probs: Float[Tensor, "B N V"]) -> Bool[Tensor, ""]:
    """Whether every node has a target distribution; padding is not read."""
    return (are_distributions(target_probs) | (trees.parents == PADDING_PARENT)).all()


def check_flags(trees: TreeBatch, is_verifiable: int | bool, has_distributions: int | bool) -> None:
    """Raise for flags that have come to the host and are false.

    Raises LogitsError: a target distribution that is not finite, is negative or does not sum to one; NaN in a draft's.
    InvalidTreeError: the trees are not drafted trees.
    """
    if not has_distributions:
        raise LogitsError(
            "a target distribution holds NaN or infinity, or does not sum to one: check the logits, the model's "
            "weights and dtype, and the logits processors"
        )
    if is_verifiable:
        return
    if trees.draft_probs is not None and bool(trees.draft_probs.isnan().any()):
        raise LogitsError(
            "the drafter's distributions hold NaN: check the draft model's weights and the logits processors"
        )
    raise InvalidTreeError(
        "the batch holds an invalid tree: a child before its parent, padding before a node, a draft distribution that "
        "does not sum to one, a drawn token of probability zero, or a token outside the target's vocabulary "
        "(TokenTree names the mistake when the tree is built row by row)"
    )
