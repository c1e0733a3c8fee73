"""Toy targets, drafters and batches that the verification tests share."""

from __future__ import annotations

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
    enumerate_traces,
)
from treespec.tree import TokenTree, TreeBatch, Verdict
from treespec.verification import GivenUniforms
from treespec.verification.dense.scans import Scan, outcomes


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


def drafted_batch(drafter: ToyDrafter, target: ConditionalProbs) -> tuple[Tensor, TreeBatch, Tensor]:
    """Every tree that a drafter can draw: weights float64 [B], the trees, their target distributions."""
    weights, trees = zip(*enumerate_traces(drafter), strict=True)
    batch, target_probs = as_batch([(tree, target) for tree in trees])
    return torch.tensor([float(weight) for weight in weights], dtype=torch.float64), batch, target_probs


def mean_accepted_by_rejection(scan: Scan, trees: TreeBatch) -> Tensor:
    """Expected number of accepted tokens per row when siblings are verified in turn: float64 [B]."""
    accept_probs = _accept_probs(scan, trees)
    total = torch.zeros_like(accept_probs[:, 0])
    for rows, tree in _by_shape(trees):
        probs, reached = accept_probs[rows], torch.zeros_like(accept_probs[rows])
        reached[:, 0] = 1
        for node in range(tree.num_nodes):
            left = reached[:, node].clone()
            for child in tree.children(node):
                reached[:, child] = left * probs[:, child]
                left = left - reached[:, child]
        total[rows] = reached.sum(1) - 1
    return total


def mean_accepted_by_traversal(scan: Scan, trees: TreeBatch) -> Tensor:
    """Expected number of accepted tokens per row when nodes are verified from the leaves up: float64 [B]."""
    accept_probs = _accept_probs(scan, trees)
    total = torch.zeros_like(accept_probs[:, 0])
    for rows, tree in _by_shape(trees):
        probs, left = accept_probs[rows], torch.ones(len(rows), dtype=accept_probs.dtype)
        for node in _post_order(tree.children_lists, 0):
            total[rows] += left * probs[:, node] * tree.depths[node]
            left = left * (1 - probs[:, node])
    return total


def _accept_probs(scan: Scan, trees: TreeBatch) -> Tensor:
    """A number per node: float64 [B, N]."""
    accept_probs, _ = outcomes(scan, scan.sums, scan.weights, scan.drawn_probs, [True] * trees.tokens.numel())
    return torch.tensor(accept_probs, dtype=torch.float64).view(trees.tokens.shape)


def _by_shape(trees: TreeBatch) -> list[tuple[Tensor, TokenTree]]:
    """The rows of every shape, with one tree of that shape."""
    shapes, number = trees.parents.unique(dim=0, return_inverse=True)
    groups = [(number == i).nonzero().squeeze(1) for i in range(len(shapes))]
    return [(rows, trees.trees[int(rows[0])]) for rows in groups]


def _post_order(children: list[list[int]], node: int) -> list[int]:
    return [i for child in children[node] for i in _post_order(children, child)] + [node]
