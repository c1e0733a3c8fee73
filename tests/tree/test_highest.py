"""The highest scores are those of `topk`."""

import pytest
import torch

from treespec.tree.highest import highest


@pytest.mark.parametrize("size", [5, 700, 2048, 2049, 2111, 5000])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,)])
def test_they_are_those_of_topk(size: int, k: int, shape: tuple[int, ...]) -> None:
    k = min(k, size)
    scores = torch.rand(*shape, size, generator=torch.Generator().manual_seed(size + k))
    assert highest(scores, k).equal(scores.topk(k, dim=-1).indices)


def test_the_last_scores_count_too() -> None:
    scores = torch.zeros(1, 2111)
    scores[0, [2110, 2050, 7]] = torch.tensor([3.0, 2.0, 1.0])
    assert highest(scores, 3).tolist() == [[2110, 2050, 7]]
