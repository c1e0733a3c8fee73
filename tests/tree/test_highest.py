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
