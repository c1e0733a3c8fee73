"""Input types of batched verification, checks of its trees and distributions, and the errors for invalid ones."""

from jaxtyping import Bool, Float
from torch import Tensor

from treespec.checks import are_totals
from treespec.errors import InvalidTreeError, LogitsError
from treespec.tree import PADDING_PARENT, ROOT_PARENT, TreeBatch

Uniforms = Float[Tensor, "B N"]
Probs = Float[Tensor, "B N V"]


def has_known_tokens(trees: TreeBatch, vocab_size: int) -> bool:
    """Whether every drafted token is in the vocabulary; roots and padding are not looked at."""
    tokens, parents = trees.tokens.numpy()[:, 1:], trees.parents.numpy()[:, 1:]
    return bool(((tokens >= 0) & (tokens < vocab_size) | (parents < 0)).all())


def may_be_verified(trees: TreeBatch, least: Float[Tensor, "B N"], total: Float[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Whether nodes have a distribution or, other than roots, none at all: only zeros or NaN; True at padding."""
    is_none = total.isnan() | ((least == 0) & (total == 0))  # Numbers of both signs may add up to 0.
    return are_totals(least, total) | (is_none & (trees.parents != ROOT_PARENT)) | (trees.parents == PADDING_PARENT)


def check_flags(trees: TreeBatch, is_verifiable: int | bool, has_distributions: int | bool) -> None:
    """Raise LogitsError or InvalidTreeError for flags that have come to the host and are false."""
    if not has_distributions:
        raise LogitsError(
            "a target distribution holds NaN or infinity, does not sum to one, or allows no token where the text is "
            "kept: check the logits, the model's weights and dtype, and the logits processors"
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
