"""What is measured along texts is what the saved drafters then do."""

from collections import Counter

import torch
from helpers.training import LENGTH, VOCAB, write
from transformers import AutoModelForCausalLM

import treespec
from treespec.policies import Chain
from treespec.training.data import FeatureSet
from treespec.training.evaluate import play_rounds
from treespec.training.features import FeatureReader


def test_rounds_played_along_texts_are_what_the_saved_drafter_does(trained, target, tmp_path):
    written = write(target, 4, seed=5)
    reader = FeatureReader(target, (0, 1, 2), 8, dtype=torch.float32)
    batch = FeatureSet(written, reader, tmp_path, LENGTH, 0, torch.device("cpu")).batch(range(4))
    evaluated = trained.objective.evaluate(batch)
    drafter = load(trained, target)
    for row, text in enumerate(written.tokens.split(LENGTH)):
        accepted = play_rounds(evaluated.ranks[row, 2:], evaluated.is_evaluated[row, 2:])
        speculation = treespec.TreeSpeculation(drafter, tree=Chain(3))
        new = sum(accepted) + len(accepted)
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
