"""The highest scores are those of `topk`."""

import pytest
import torch

from treespec.tree.highest import highest


@pytest.mark.parametrize("size", [5, 2047, 2048, 2111])
def test_they_are_those_of_topk(size: int) -> None:
    for k, shape in ((1, ()), (3, (2, 3)), (8, (4,)), (8, (0,))):
        scores = torch.rand(*shape, size, generator=torch.Generator().manual_seed(size + k))
        assert highest(scores, min(k, size)).equal(scores.topk(min(k, size), dim=-1).indices)
