"""How a batch is verified: all nodes at once with one host copy (dense), or tree by tree, visiting few nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import RandomSource, VerificationRule
from treespec.tree import TreeBatch, Verdict
from treespec.verification.dense.forms import has_dense_form
from treespec.verification.dense.scans import Probs, Uniforms
from treespec.verification.dense.verdicts import check_flags, decode, is_verifiable, pack_greedy, verify_dense
from treespec.verification.rule import ArgmaxSource, GivenUniforms
from treespec.verification.target_walk import TargetWalk

_ProbsOfNode = Callable[[int, int], Tensor]
DENSE_ON_CPU = 1 << 12
"""Up to so many numbers per row the dense form is the faster one on a CPU too: the steps of a walk cost more."""


class BatchProbs(Protocol):
    """The target distributions of a batch: after one node, or after all without waiting for the device."""

    @property
    def vocab_size(self) -> int: ...

    def probs(self, row: int, node: int) -> Float[Tensor, " V"]: ...

    def dense(self) -> Probs: ...


class BatchScores(Protocol):
    """The target's processed scores likewise, for greedy decoding."""

    @property
    def vocab_size(self) -> int: ...

    def scores(self, row: int, node: int) -> Float[Tensor, " V"]: ...

    def dense_scores(self) -> Probs: ...


def verify_batch(
    rule: VerificationRule, trees: TreeBatch, target: BatchProbs, coins: Uniforms, draws: Uniforms
) -> list[Verdict]:
    """Verify every tree of a batch in the form that suits the device; `rule` must support the trees.

    Rules with a dense form use it on accelerators and on small vocabularies. Otherwise the trees are verified one by
    one, and only the nodes that the rule visits get a distribution. Coins and draws as for `verify`; raises as
    `check_flags`.
    """
    if _is_dense(rule, trees, target.vocab_size):
        return verify_dense(rule, trees, target.dense(), coins, draws)
    sources = map(GivenUniforms, coins.tolist(), draws.tolist())
    return _verify_rows(rule, trees, target.probs, sources, target.vocab_size)


def verify_greedy(trees: TreeBatch, target: BatchScores) -> list[Verdict]:
    """Verify by the target walk that takes the highest score at every node; see `verify_batch`."""
    rule = TargetWalk()
    if _is_dense(rule, trees, target.vocab_size):
        return decode(pack_greedy(trees, target.dense_scores()), trees)
    return _verify_rows(rule, trees, target.scores, (ArgmaxSource() for _ in trees.trees), target.vocab_size)


def _is_dense(rule: VerificationRule, trees: TreeBatch, vocab_size: int) -> bool:
    is_small = trees.max_nodes * vocab_size <= DENSE_ON_CPU
    return has_dense_form(rule) and (is_small or trees.device.type != "cpu")


def _verify_rows(
    rule: VerificationRule, trees: TreeBatch, target: _ProbsOfNode, sources: Iterator[RandomSource], vocab_size: int
) -> list[Verdict]:
    with one_thread(trees.device):
        check_flags(trees, bool(is_verifiable(trees, vocab_size)), True)
        rows = zip(trees.trees, sources, strict=True)
        return [rule.verify(tree, partial(target, row), rng) for row, (tree, rng) in enumerate(rows)]


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
