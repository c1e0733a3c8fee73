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
