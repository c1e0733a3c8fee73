"""Drafters survive steps in which they are not asked: what they propose afterwards is right."""

import pytest
import torch
from helpers import dflash_files, eagle3_files, eagle_files
from helpers.head_runs import check_distributions, left_padded, make, run
from helpers.tiny import noisy_copy, prompt, tiny_llama

import treespec
from treespec import BestFirst, Control, KAry
from treespec.drafters import SuffixLookup, TokenRecycling
from treespec.drafters.registry import DRAFTERS as REGISTERED


class NowAndThen(Control):
    """Drafts in some steps, after one, two and three plain ones."""

    drafts = (True, False, True, False, False, True, True, False, False, False, True)

    def __init__(self, policy):
        super().__init__(pass_ms={1: 1.0})
        self.policy, self.steps = policy, 0

    def choose(self, num_rows, context, has_room=True):
        super().choose(num_rows, context, False)
        self.current, self.steps = self.policy, self.steps + 1
        return has_room and self.drafts[self.steps % len(self.drafts)]

    def trim(self, trees):
        return trees

    def learn(self, step, draft_ms, other_ms):
        pass


@pytest.fixture(scope="module")
def target():
    return tiny_llama(num_layers=3)


HEADS = {
    "eagle": eagle_files.shape(),
    "eagle3": eagle3_files.shape(hidden=32),
    "peagle": eagle3_files.parallel(),
    "dflash": dflash_files.shape(),
}


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("made", HEADS.values(), ids=HEADS)
def test_heads_read_what_they_missed(tmp_path, target, made, do_sample):
    drafter, plain = make(tmp_path, target, made)
    options = {"top_k": 0} if do_sample else {}
    run(target, drafter, left_padded([9, 4, 6]), 14, do_sample, tree=NowAndThen(KAry((2, 2))), **options)
    assert check_distributions(target, drafter, plain) > 30


def test_a_draft_model_catches_up(target):
    """The target drafts for itself: all that it selects is accepted."""
    speculation = treespec.TreeSpeculation(noisy_copy(target, noise=0.0), tree=NowAndThen(treespec.Chain(2)))
    inputs = {"max_new_tokens": 30, "do_sample": False}
    out = target.generate(prompt(2), **inputs, custom_generate=speculation)
    assert torch.equal(out, target.generate(prompt(2), **inputs))
    assert speculation.stats.draft_acceptance_rate == 1


DRAFTERS = {
    "draft model": lambda target: noisy_copy(target),
    **{name: lambda target, name=name: REGISTERED[name]() for name in REGISTERED},
    "merge": lambda target: [noisy_copy(target), TokenRecycling(), SuffixLookup()],
}


@pytest.mark.parametrize("make_drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_the_output_stays_the_targets(target, make_drafter):
    inputs = {**left_padded([9, 4]), "max_new_tokens": 24, "do_sample": False}
    speculation = treespec.TreeSpeculation(make_drafter(target), tree=NowAndThen(BestFirst(6)))
    out = target.generate(**inputs, custom_generate=speculation)
    assert torch.equal(out, target.generate(**inputs))
    assert speculation.stats.num_draft_tokens > 0
