"""Waves grow with the ranks on a path, not with depth or nodes."""

import pytest
import torch

from treespec.tree import TokenTree, TreeBatch
from treespec.verification.dense.plan import make_plan

CHAIN = [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
PAIRS = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
STAR = [(0,), (1,), (2,), (0, 0), (0, 0, 0)]


def batch(*shapes: list[tuple[int, ...]]) -> TreeBatch:
    return TreeBatch.from_trees([TokenTree.from_paths(paths, list(range(len(paths) + 1))) for paths in shapes])


@pytest.mark.parametrize(
    ("shapes", "by_traversal", "by_rejection"),
    [([CHAIN], 1, 1), ([PAIRS], 3, 2), ([STAR], 3, 3), ([CHAIN, PAIRS, STAR], 3, 3), ([[(0,)]], 1, 1)],
)
def test_number_of_waves(shapes: list, by_traversal: int, by_rejection: int) -> None:
    trees = batch(*shapes)
    assert len(make_plan(trees, has_masses=True).ends) - 1 == by_traversal
    assert len(make_plan(trees, has_masses=False).ends) - 1 == by_rejection


def test_a_batch_of_roots_has_no_wave() -> None:
    roots = TreeBatch(torch.zeros(2, 1, dtype=torch.int64), torch.full((2, 1), -1))
    plan = make_plan(roots, has_masses=True)
    assert plan.ends == [0]
    assert plan.taken.shape == (2, 0)


def test_every_child_follows_what_it_waits_for() -> None:
    trees = batch(PAIRS, STAR, CHAIN)
    plan = make_plan(trees, has_masses=True)
    waves = torch.bucketize(torch.arange(plan.ends[-1]), torch.tensor(plan.ends[1:]), right=True).tolist()
    num_nodes = trees.tokens.numel()
    assert sorted(plan.nodes) == [node for node in range(num_nodes) if trees.parents.flatten()[node] >= 0]
    for number, wave in enumerate(waves):
        if wave:
            assert waves[plan.before[number]] == wave - 1
        if plan.sources[number] >= num_nodes:
            assert waves[plan.sources[number] - num_nodes] == wave - 1
        for other in plan.lines[number]:
            assert other == len(plan.nodes) or waves[other] <= wave
