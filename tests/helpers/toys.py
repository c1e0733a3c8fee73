"""Toy targets, drafters and batches that the verification tests share."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.testing import (
    IID,
    TOY_SCHEMES,
    WITHOUT_REPLACEMENT,
    AdaptiveDepth,
    AdaptiveWidth,
    ConditionalProbs,
    FixedShape,
    RandomDistributions,
    Shape,
    ToyDrafter,
    ToyTree,
)
from treespec.tree import TreeBatch, Verdict
from treespec.verification import GivenUniforms


class SamplingSource:
    """A random source that really draws: for random trees rather than all of them."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def flip(self, node: int, prob: float) -> bool:
        return bool(self._rng.random() < prob)

    def pick(self, node: int, weights: np.ndarray) -> int:
        return int(self._rng.choice(len(weights), p=weights / weights.sum()))


def random_drafted(rng: np.random.Generator, vocab_size: int) -> tuple[ToyTree, ConditionalProbs]:
    """A random tree of a random scheme and shape, and a target distribution that now and then equals the draft's."""
    branching = rng.integers(1, 4, size=rng.integers(1, 4)).tolist()
    shapes = [FixedShape.kary(*branching), AdaptiveDepth(3, 3), AdaptiveWidth(3, 3)]
    return _drafted(rng, vocab_size, shapes[rng.integers(len(shapes))], str(rng.choice(TOY_SCHEMES)))


def _drafted(rng: np.random.Generator, vocab_size: int, shape: Shape, scheme: str) -> tuple[ToyTree, ConditionalProbs]:
    zero_shares = rng.choice([0.0, 0.3, 0.6], size=3)
    seeds = rng.integers(2**31, size=3)
    target, *drafts = (
        RandomDistributions(vocab_size, int(s), zero_share=z) for s, z in zip(seeds, zero_shares, strict=True)
    )
    tree = ToyDrafter(scheme, shape, tuple(drafts))(SamplingSource(rng))
    return tree, drafts[0] if rng.random() < 0.2 else target


def random_chain(rng: np.random.Generator, vocab_size: int) -> tuple[ToyTree, ConditionalProbs]:
    """A random chain of one to four children, of a random scheme; see `random_drafted`."""
    return _drafted(rng, vocab_size, FixedShape.kary(*[1] * rng.integers(1, 5)), str(rng.choice(TOY_SCHEMES)))


def random_pairs(rng: np.random.Generator, vocab_size: int) -> tuple[ToyTree, ConditionalProbs]:
    """A random tree of nodes with one or two children, all drawn, of widths fixed beforehand."""
    shape = FixedShape.kary(*rng.integers(1, 3, size=rng.integers(1, 4)).tolist())
    return _drafted(rng, vocab_size, shape, str(rng.choice([IID, WITHOUT_REPLACEMENT])))


def as_batch(toys: Sequence[tuple[ToyTree, ConditionalProbs]]) -> tuple[TreeBatch, Tensor]:
    """The trees as the engine would hold them, and their target distributions float64 [B, N, V] (NaN on padding)."""
    trees = TreeBatch.from_trees([tree.to_token_tree() for tree, _ in toys])
    vocab_size = len(toys[0][1](()))
    target_probs = torch.full((*trees.tokens.shape, vocab_size), torch.nan, dtype=torch.float64)
    for row, (tree, target) in enumerate(toys):
        for node, context in enumerate(tree.contexts):
            target_probs[row, node] = torch.from_numpy(target(context).astype(np.float64))
    return trees, target_probs


def verify_rows(
    rule: VerificationRule, trees: TreeBatch, target_probs: Tensor, coins: Tensor, draws: Tensor
) -> list[Verdict]:
    """The rule's own `verify`, tree by tree and unchecked: the reference of the dense forms."""
    return [
        rule.verify(tree, target_probs[b].__getitem__, GivenUniforms(coins[b], draws[b]))
        for b, tree in enumerate(trees.trees)
    ]
