"""`verify`: the verification of a tree or a batch of trees as one function, for loops written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from treespec.checks import are_distributions
from treespec.errors import ConfigError, InvalidTreeError, LogitsError, VocabularyMismatchError
from treespec.protocols import VerificationRule
from treespec.tree import PADDING_PARENT, TokenTree, TreeBatch, Verdict
from treespec.verification.dense import verify_dense
from treespec.verification.rows import walk_rows

Array = Tensor | np.ndarray | Sequence[Any]


@overload
def verify(
    tree: TokenTree,
    target_probs: Array,
    rule: str | VerificationRule = ...,
    *,
    coins: Array | None = ...,
    draws: Array | None = ...,
    generator: torch.Generator | None = ...,
) -> Verdict: ...


@overload
def verify(
    tree: TreeBatch,
    target_probs: Array,
    rule: str | VerificationRule = ...,
    *,
    coins: Array | None = ...,
    draws: Array | None = ...,
    generator: torch.Generator | None = ...,
) -> list[Verdict]: ...


def verify(
    tree: TokenTree | TreeBatch,
    target_probs: Array,
    rule: str | VerificationRule = "auto",
    *,
    coins: Array | None = None,
    draws: Array | None = None,
    generator: torch.Generator | None = None,
) -> Verdict | list[Verdict]:
    """Decide which drafted tokens are kept, and the token that follows them.

    Args:
        tree: one tree of N nodes, or a batch of B.
        target_probs: float32 or float64 [N, V] (a batch: [B, N, V]): the target distribution after every node, logits
            processors applied; a tensor, an array or nested lists. Rows of padding are not read, gradients not kept.
        rule: a rule or its name; "auto" takes the target walk for selected children and traversal for sampled ones.
        coins: float [N] (a batch: [B, N]) in [0, 1), one per judged node; drawn from `generator` when left out.
        draws: likewise, one per node that a token is drawn from; must share no noise with coins or drafting.
        generator: source of what was left out, on the device of `target_probs`; None is torch's global one.

    Returns:
        A Verdict, or one per row of the batch.

    Raises:
        InvalidTreeError: what is no tree, does not fit `target_probs`, or has values that no drafted tree has.
        VocabularyMismatchError: the draft's and the target's distributions have different vocabularies, or a token is
            outside of them.
        LogitsError: a target distribution is not finite, is negative or does not sum to one.
        RuleMismatchError: the rule does not admit the tree.
        ConfigError: an unknown rule, or no generator; distributions, coins or draws of a wrong shape, dtype or range.
    """
    if not isinstance(tree, (TokenTree, TreeBatch)):
        raise InvalidTreeError(f"tree must be a TokenTree or a TreeBatch, got {type(tree).__name__}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    probs = _as_tensor("target_probs", target_probs)
    coins, draws = (
        None if values is None else _as_tensor(name, values) for name, values in (("coins", coins), ("draws", draws))
    )
    if isinstance(tree, TokenTree):
        coins, draws = (None if values is None else values.unsqueeze(0) for values in (coins, draws))
        return _verify_batch(TreeBatch.from_trees([tree]), probs.unsqueeze(0), rule, coins, draws, generator)[0]
    return _verify_batch(tree, probs, rule, coins, draws, generator)


def _as_tensor(name: str, values: Array) -> Tensor:
    """Tensors and arrays as they are, without their gradients; Python's floats are doubles."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.from_numpy(np.array(values))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"{name} must be an array of numbers: {error}") from error


def _verify_batch(
    trees: TreeBatch,
    target_probs: Tensor,
    rule: str | VerificationRule,
    coins: Tensor | None,
    draws: Tensor | None,
    generator: torch.Generator | None,
) -> list[Verdict]:
    from treespec.verification import resolve

    _check_shapes(trees, target_probs)
    resolved = resolve(rule, True, trees)
    coins = _uniforms("coins", coins, trees, target_probs.device, generator)
    draws = _uniforms("draws", draws, trees, target_probs.device, generator)
    if target_probs.device.type != "cpu":
        return verify_dense(resolved, trees, target_probs, coins, draws)
    _check_values(trees, target_probs)
    return walk_rows(resolved, trees, target_probs, coins, draws)


def _check_shapes(trees: TreeBatch, target_probs: Tensor) -> None:
    if target_probs.shape[:-1] != trees.tokens.shape:
        raise InvalidTreeError(
            f"target_probs must hold one distribution per node, {[*trees.tokens.shape, 'V']}, got "
            f"{list(target_probs.shape)}"
        )
    if target_probs.dtype not in (torch.float32, torch.float64):
        raise ConfigError(
            f"target_probs must be float32 or float64, got {target_probs.dtype}: take the softmax in float32"
        )
    if trees.draft_probs is not None and trees.draft_probs.shape[1] != target_probs.shape[-1]:
        raise VocabularyMismatchError(
            f"the tree's draft distributions cover {trees.draft_probs.shape[1]} tokens, the target's "
            f"distributions {target_probs.shape[-1]}"
        )


def _check_values(trees: TreeBatch, target_probs: Tensor) -> None:
    is_node = trees.parents != PADDING_PARENT
    vocab_size = target_probs.shape[-1]
    is_outside = (trees.tokens < 0) | (trees.tokens >= vocab_size)
    is_child = is_node & (trees.parents >= 0)
    if (is_outside & is_child).any():
        raise VocabularyMismatchError(f"a drafted token is outside the target's vocabulary of {vocab_size}")
    if not trees.is_valid:
        raise InvalidTreeError(
            "the trees are not drafted trees: parents must stand before children and padding last, "
            "distributions must sum to "
            "one, and no drawn token may have probability zero (TokenTree names the fault when built row by row)"
        )
    is_distribution = are_distributions(target_probs)
    if not (is_distribution | ~is_node).all():
        row, node = (int(i) for i in (~is_distribution & is_node).nonzero()[0])
        total, low = float(target_probs[row, node].sum()), float(target_probs[row, node].min())
        raise LogitsError(
            f"target_probs of row {row}, node {node} are not a distribution: their sum is {total:.6g}, the "
            f"least is {low:.6g}; "
            "give probabilities, not logits"
        )


def _uniforms(
    name: str, values: Tensor | None, trees: TreeBatch, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """The caller's coins or draws, checked, or fresh ones: float64 [B, N] in [0, 1)."""
    if values is None:
        return torch.rand(trees.tokens.shape, dtype=torch.float64, device=device, generator=generator)
    if values.shape != trees.tokens.shape or not values.is_floating_point():
        expected, got = list(trees.tokens.shape), f"{values.dtype} {list(values.shape)}"
        raise ConfigError(f"{name} must be one float per node, {expected}, got {got}")
    if not ((values >= 0) & (values < 1)).all():
        raise ConfigError(f"{name} must lie in [0, 1), got values from {float(values.min())} to {float(values.max())}")
    return values.to(device)
