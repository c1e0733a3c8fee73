"""The loss and its gradients against whole logits and autograd."""

import pytest
import torch

from treespec.training import losses
from treespec.training.losses import TargetTopProbs, distribution_loss


def plain_loss(outputs, weight, target, row_weights, tv_weight):
    """The loss from whole logits, row by row, with autograd's own gradients."""
    total = torch.zeros((), dtype=outputs.dtype)
    for row, ids, probs, row_weight in zip(
        outputs, target.ids.tolist(), target.probs.tolist(), row_weights.tolist(), strict=True
    ):
        log_draft = (weight @ row).log_softmax(-1)
        known = [(i, p) for i, p in zip(ids, probs, strict=True) if i >= 0]
        divergence = sum(p * (torch.tensor(p).log() - log_draft[i]) for i, p in known)
        shared = sum(torch.minimum(log_draft[i].exp(), torch.tensor(p, dtype=row.dtype)) for i, p in known)
        distance = sum(p for _, p in known) - shared
        total = total + row_weight * ((1 - tv_weight) * divergence + tv_weight * distance)
    return total


@pytest.mark.parametrize("tv_weight", [0.0, 0.3, 1.0])
def test_loss_and_gradients_are_those_of_whole_logits(monkeypatch, tv_weight):
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 50)
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(11, 6, generator=generator).requires_grad_()
    weight = torch.randn(13, 6, generator=generator)
    ids = torch.stack([torch.randperm(13, generator=generator)[:4] for _ in range(11)])
    probs = torch.rand(11, 4, generator=generator) / 4
    ids[3, 1], probs[3, 1] = -1, 0.0
    target, row_weights = TargetTopProbs(ids, probs), torch.rand(11, generator=generator)
    loss = distribution_loss(outputs, weight, target, row_weights, tv_weight)
    expected = plain_loss(outputs, weight, target, row_weights, tv_weight)
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(3 * loss, outputs)
    torch.testing.assert_close(found, torch.autograd.grad(3 * expected, outputs), atol=1e-6, rtol=1e-4)
