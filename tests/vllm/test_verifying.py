"""Batched verification agrees with the rules, tree by tree."""

import numpy as np
import pytest
import torch

from treespec import TokenTree, TreeBatch
from treespec.verification import resolve
from treespec.verification.rule import GivenUniforms
from treespec.vllm.verifying import FlatProbs, verify_sampled

VOCAB = 4


def random_trees(seed: int) -> TreeBatch:
    """Selected children of few tokens, so that many are right; some siblings share a token."""
    rng = torch.Generator().manual_seed(seed)
    trees = []
    for size in (1, 3, 8, 12, 12):
        parents = [-1] + [int(torch.randint(0, node, (), generator=rng)) for node in range(1, size)]
        trees.append(TokenTree(torch.randint(0, VOCAB, (size,), generator=rng), torch.tensor(parents)))
    return TreeBatch.from_trees(trees)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["auto", "traversal", "recursive"])
def test_sampled_verdicts_are_those_of_the_rule(seed: int, name: str) -> None:
    rng = torch.Generator().manual_seed(seed)
    trees = random_trees(seed)
    sizes = trees.num_nodes.tolist()
    starts = np.cumsum([0, *sizes[:-1]])
    scores = torch.randn(sum(sizes), VOCAB, generator=rng)
    numbers = torch.from_numpy(starts[:, None] + np.minimum(np.arange(12), np.array(sizes)[:, None] - 1))
    temperatures = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.7])
    target = FlatProbs(
        scores, numbers, torch.arange(5), lambda logits, owners: (logits / temperatures[owners, None]).softmax(-1)
    )
    coins, draws = torch.rand(2, 5, 12, dtype=torch.float64, generator=rng)
    rule = resolve(name, True, trees)
    found = verify_sampled(rule, trees, target, coins, draws)
    dense = target.dense()
    for row, tree in enumerate(trees.trees):
        probs = [(scores[starts[row] + node] / temperatures[row]).softmax(-1) for node in range(sizes[row])]
        assert found[row] == rule.verify(
            tree, probs.__getitem__, GivenUniforms(coins[row].tolist(), draws[row].tolist())
        )
        torch.testing.assert_close(dense[row, : sizes[row]], torch.stack(probs))
