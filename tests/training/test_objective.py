"""Measurements along texts equal those of the saved drafters; the loss and its gradients equal autograd's."""

from collections import Counter

import pytest
import torch
from helpers.training import LENGTH, VOCAB, write
from transformers import AutoModelForCausalLM

import treespec
from treespec.policies import Chain
from treespec.training import objective as module
from treespec.training.data import FeatureSet
from treespec.training.evaluate import play_rounds
from treespec.training.features import FeatureReader
from treespec.training.objective import TargetTopProbs, distribution_loss


def test_rounds_played_along_texts_are_what_the_saved_drafter_does(trained, target, tmp_path):
    written = write(target, 2, seed=5)
    reader = FeatureReader(target, (0, 1, 2), 8, dtype=torch.float32)
    batch = FeatureSet(written, reader, tmp_path, LENGTH, 0, torch.device("cpu")).batch(range(2))
    evaluated = trained.objective.evaluate(batch)
    drafter = load(trained, target)
    for row, text in enumerate(written.tokens.split(LENGTH)):
        # The prompt's pass decides the first token; drafts follow it.
        accepted = play_rounds(evaluated.ranks[row, 3:], evaluated.is_evaluated[row, 3:])
        speculation = treespec.TreeSpeculation(drafter, tree=Chain(3))
        new = 1 + sum(accepted) + len(accepted)
        target.generate(text[None, :3], max_new_tokens=new, do_sample=False, custom_generate=speculation)
        assert speculation.stats.acceptance_histogram == Counter(accepted)


def test_overlaps_are_those_of_the_distributions_at_the_drafts_positions(trained, target, tmp_path):
    written = write(target, 2, seed=6)
    reader = FeatureReader(target, (0, 1, 2), VOCAB, dtype=torch.float32)
    batch = FeatureSet(written, reader, tmp_path, LENGTH, 0, torch.device("cpu")).batch(range(2))
    objective = trained.objective
    evaluated, learner = objective.evaluate(batch), objective.learner
    with torch.no_grad():
        distributions = target(batch.tokens).logits.softmax(-1)[..., learner.target_ids]
        for depth, draft in enumerate(learner.drafts(batch, None)):
            probs = (draft.outputs @ learner.output_weight.T).softmax(-1)
            expected = torch.minimum(probs, distributions[draft.texts, draft.anchors + depth]).sum(-1)
            found = evaluated.overlaps[draft.texts, draft.anchors, depth]
            torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
        assert evaluated.is_evaluated.sum() == sum(len(draft.texts) for draft in learner.drafts(batch, None))


def load(trained, target):
    """The drafter from its files."""
    if trained.config.kind != "draft_model":
        return treespec.load_drafter(trained.result.folder, target)
    model = AutoModelForCausalLM.from_pretrained(trained.result.folder)
    assert model.config.num_hidden_layers == 2
    return model.eval()


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
    monkeypatch.setattr(module, "CHUNK_LOGITS", {"cpu": 50})
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(11, 6, generator=generator).requires_grad_()
    weight = torch.randn(13, 6, generator=generator).requires_grad_()
    ids = torch.stack([torch.randperm(13, generator=generator)[:4] for _ in range(11)])
    probs = torch.rand(11, 4, generator=generator) / 4
    ids[3, 1], probs[3, 1] = -1, 0.0
    target, row_weights = TargetTopProbs(ids, probs), torch.rand(11, generator=generator)
    loss = distribution_loss(outputs, weight, target, row_weights, tv_weight)
    expected = plain_loss(outputs, weight, target, row_weights, tv_weight)
    torch.testing.assert_close(loss, expected)
    found = torch.autograd.grad(3 * loss, (outputs, weight))
    torch.testing.assert_close(found, torch.autograd.grad(3 * expected, (outputs, weight)), atol=1e-6, rtol=1e-4)
