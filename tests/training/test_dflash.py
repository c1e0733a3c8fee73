"""Anchors of blocks."""

import torch

from treespec.training.dflash import draw_anchors


def test_anchors_are_where_the_target_generated_the_token():
    is_generated = torch.rand(3, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    anchors = draw_anchors(is_generated, 10, torch.Generator().manual_seed(1))
    assert is_generated.gather(1, anchors).all()
    assert all(len(set(row)) == 10 for row in anchors.tolist())
