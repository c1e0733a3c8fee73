"""How a batch is verified: all nodes at once on the device (dense), or tree by tree, visiting few nodes.

`verify` is the same as one function, for decoding loops written by hand.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol, overload

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from treespec.checks import AUTO
from treespec.errors import ConfigError, InvalidTreeError, LogitsError, VocabularyMismatchError
from treespec.protocols import RandomSource, VerificationRule
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.tree.transfer import download
from treespec.verification.dead_ends import verify_cut
from treespec.verification.flags import Probs, Uniforms, check_flags, has_known_tokens, may_be_verified
from treespec.verification.registry import resolve
from treespec.verification.rule import ArgmaxSource, GivenUniforms
from treespec.verification.target_walk import TargetWalk

Array = Tensor | np.ndarray | Sequence[Any]
Rule = str | VerificationRule
_ProbsOfNode = Callable[[int, int], Tensor]
DENSE_ON_CPU = 1 << 12
"""Up to this many numbers per row the dense form is the faster one on a CPU too: the steps of a walk cost more."""


class BatchTable(Protocol):
    """The target's outputs at all nodes of a batch: vocabulary size, device, and which nodes have a distribution."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def has_probs(self, row: int, node: int) -> bool:
        """See `HasProbs`."""
        ...


class BatchProbs(BatchTable, Protocol):
    """The target distributions: after one node, or after all without waiting for the device, NaN or 0 for none."""

    def probs(self, row: int, node: int) -> Float[Tensor, " V"]: ...

    def dense(self) -> Probs: ...


class BatchScores(BatchTable, Protocol):
    """The target's processed scores likewise, for greedy decoding; the highest is infinite or NaN for none."""

    def scores(self, row: int, node: int) -> Float[Tensor, " V"]: ...

    def dense_scores(self) -> Probs: ...


def verify_batch(
    rule: VerificationRule, trees: TreeBatch, target: BatchProbs, coins: Uniforms, draws: Uniforms
) -> list[Verdict]:
    """Verify every tree of a batch in the form that suits the device; `rule` must support the trees.

    Rules with a dense form use it on accelerators and on small vocabularies. Otherwise the trees are verified one by
    one, and only the nodes that the rule visits get a distribution. Coins and draws as for `verify`; raises as
    `check_flags`. Coins and draws are on the host.
    """
    if _is_dense(rule, trees, target):
        return _dense().verify_dense(rule, trees, target.dense(), coins, draws)
    return _verify_rows(rule, trees, target.probs, map(GivenUniforms, coins.tolist(), draws.tolist()), target)


def verify_greedy(trees: TreeBatch, target: BatchScores) -> list[Verdict]:
    """Verify by the target walk that takes the highest score at every node; see `verify_batch`."""
    rule = TargetWalk()
    if _is_dense(rule, trees, target):
        return _dense().verify_scores(trees, target.dense_scores())
    if trees.max_nodes == 1:  # Nothing was drafted.
        tops = [ArgmaxSource().pick(0, target.scores(row, 0)) for row in range(trees.num_rows)]
        return [Verdict((0,), top, is_bonus=True) for top in tops]
    return _verify_rows(rule, trees, target.scores, (ArgmaxSource() for _ in trees.trees), target)


def _is_dense(rule: VerificationRule, trees: TreeBatch, target: BatchTable) -> bool:
    is_small = trees.max_nodes * target.vocab_size <= DENSE_ON_CPU
    return (is_small or target.device.type != "cpu") and _dense().has_dense_form(rule)


def _dense() -> ModuleType:
    """The batched forms, loaded where they are used: on accelerators and for small vocabularies."""
    return import_module("treespec.verification.dense.forms")


def _verify_rows(
    rule: VerificationRule, trees: TreeBatch, values: _ProbsOfNode, sources: Iterator[RandomSource], target: BatchTable
) -> list[Verdict]:
    with one_thread(target.device):
        check_flags(trees, has_known_tokens(trees, target.vocab_size) and trees.is_valid, True)
        rows = zip(trees.trees, sources, strict=True)
        return [
            verify_cut(rule, tree, partial(values, row), partial(target.has_probs, row), rng)
            for row, (tree, rng) in enumerate(rows)
        ]


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread on a CPU: waking more takes longer than the work on single vectors over a vocabulary."""
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@overload
def verify(tree: TokenTree, target_probs: Array, rule: Rule = ..., **chance: Any) -> Verdict: ...


@overload
def verify(tree: TreeBatch, target_probs: Array, rule: Rule = ..., **chance: Any) -> list[Verdict]: ...


def verify(  # pyright: ignore[reportInconsistentOverload]  (they leave `**chance` to it)
    tree: TokenTree | TreeBatch,
    target_probs: Array,
    rule: Rule = AUTO,
    *,
    coins: Array | None = None,
    draws: Array | None = None,
    generator: torch.Generator | None = None,
) -> Verdict | list[Verdict]:
    """Decide which drafted tokens are kept, and the token that follows them: a Verdict, or one per row of the batch.

    Args:
        tree: one tree of N nodes, or a batch of B.
        target_probs: float32 or float64 [N, V] (a batch: [B, N, V]): the target distribution after every node, logits
            processors applied; a tensor, an array or nested lists. Rows of padding are not read; gradients are dropped.
            Rows of zeros or NaN stand for none: the tree is cut off there, and the path ends at the latest one node
            before, whose next token may then be that node's.
        rule: a rule or its name; "auto" takes the target walk for selected children and traversal for sampled ones.
        coins: float [N] (a batch: [B, N]) in [0, 1), one per node accepted or rejected; None: from `generator`.
        draws: likewise, one per node that a token is drawn from; must be independent of coins and drafting.
        generator: on any device; None is torch's global one of the CPU.

    Raises:
        InvalidTreeError: not a tree, one that does not fit `target_probs`, or values that no drafted tree has.
        VocabularyMismatchError: the draft's vocabulary is not the target's, or a token is outside of it.
        LogitsError: a target distribution is infinite, is negative or does not sum to one, or a root has none.
        RuleMismatchError: the rule cannot verify the tree.
        ConfigError: an unknown rule; a wrong type, shape, dtype or range of the other arguments.
    """
    if not isinstance(tree, (TokenTree, TreeBatch)):
        raise InvalidTreeError(f"tree must be a TokenTree or a TreeBatch, got {type(tree).__name__}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ConfigError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    is_single = isinstance(tree, TokenTree)
    trees = TreeBatch.from_trees([tree]) if isinstance(tree, TokenTree) else tree
    probs = _as_tensor("target_probs", target_probs, is_single)
    _check_shapes(trees, probs)
    chosen = resolve(rule, True, trees)
    coins, draws = (
        torch.rand(trees.tokens.shape, dtype=torch.float64, device=generator and generator.device, generator=generator)
        if values is None
        else _check_uniforms(name, _as_tensor(name, values, is_single), trees)
        for name, values in (("coins", coins), ("draws", draws))
    )
    if probs.device.type == "cpu" or not _dense().has_dense_form(chosen):
        _check_values(trees, probs)  # Otherwise flags come with the verdicts, so that nothing waits for the device.
    verdicts = verify_batch(chosen, trees, _table(probs), *download(coins, draws))
    return verdicts[0] if is_single else verdicts


def _table(probs: Probs) -> Any:
    """A `BatchProbs` of given distributions [B, N, V]."""
    return SimpleNamespace(
        vocab_size=probs.shape[-1],
        device=probs.device,
        probs=lambda row, node: probs[row, node],
        has_probs=lambda row, node: bool(probs[row, node].sum() > 0),  # False for NaN too.
        dense=lambda: probs,
    )


def _as_tensor(name: str, values: Array, is_single: bool) -> Shaped[Tensor, "..."]:
    """A tensor with a batch dimension and without gradients; Python's floats become float64."""
    try:
        array = values.detach() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"{name} must be an array of numbers: {error}") from error
    return array.unsqueeze(0) if is_single else array


def _check_shapes(trees: TreeBatch, target_probs: Shaped[Tensor, "..."]) -> None:
    if target_probs.shape[:-1] != trees.tokens.shape:
        wanted, got = [*trees.tokens.shape, "V"], list(target_probs.shape)
        raise InvalidTreeError(f"target_probs must hold one distribution per node, {wanted}, got {got}")
    if target_probs.dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"target_probs must be float32 or float64, got {target_probs.dtype}: softmax in float32")
    if trees.draft_probs is not None and trees.draft_probs.shape[1] != target_probs.shape[-1]:
        raise VocabularyMismatchError(
            f"draft distributions cover {trees.draft_probs.shape[1]} tokens, target_probs {target_probs.shape[-1]}"
        )


def _check_values(trees: TreeBatch, target_probs: Probs) -> None:
    vocab_size = target_probs.shape[-1]
    if not has_known_tokens(trees, vocab_size):
        raise VocabularyMismatchError(f"a drafted token is outside the target's vocabulary of {vocab_size}")
    check_flags(trees, trees.is_valid, True)
    is_wrong = ~may_be_verified(trees, *download(target_probs.amin(-1), target_probs.sum(-1)))
    if is_wrong.any():
        row, node = (int(i) for i in is_wrong.nonzero()[0])
        probs = target_probs[row, node]
        raise LogitsError(
            f"target_probs of row {row}, node {node} are not a distribution: their sum is {float(probs.sum()):.6g}, "
            f"the least is {float(probs.min()):.6g}; give probabilities, not logits"
        )


def _check_uniforms(name: str, values: Shaped[Tensor, "..."], trees: TreeBatch) -> Uniforms:
    """The caller's coins or draws, in [0, 1)."""
    if values.shape != trees.tokens.shape or not values.is_floating_point():
        expected = list(trees.tokens.shape)
        got = f"{values.dtype} {list(values.shape)}"
        raise ConfigError(f"{name} must be one float per node, {expected}, got {got}")
    if not ((values >= 0) & (values < 1)).all():
        raise ConfigError(f"{name} must lie in [0, 1), got values from {float(values.min())} to {float(values.max())}")
    return values
