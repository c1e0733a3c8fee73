"""Drafters survive steps in which they are not asked: what they propose afterwards is right."""

import pytest
from helpers import dflash_files, eagle3_files, eagle_files
from helpers.head_runs import check_distributions, left_padded, make, run
from helpers.tiny import identical, noisy_copy, prompt, tiny_llama

from treespec import BestFirst, Chain, Control, KAry, TreeSpeculation
from treespec.drafters import SuffixLookup, TokenRecycling
from treespec.drafters.registry import DRAFTERS as REGISTERED


class NowAndThen(Control):
    """Drafts in some steps, after one, two and three plain ones."""

    drafts = (True, False, True, False, False, True, True, False, False, False, True)

    def __init__(self, policy):
        super().__init__(pass_ms={1: 1.0})
        self.policy, self.steps = policy, 0

    def choose(self, num_rows, context, room=1, num_unread=None):
        super().choose(num_rows, context, 0)
        self.current, self.steps = self.policy, self.steps + 1
        return room > 0 and self.drafts[self.steps % len(self.drafts)]

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
    speculation = TreeSpeculation(noisy_copy(target, noise=0.0), tree=NowAndThen(Chain(2)))
    assert identical(target, prompt(2), speculation, max_new_tokens=30).draft_acceptance_rate == 1


DRAFTERS = {
    "draft model": lambda target: noisy_copy(target),
    **{name: lambda target, name=name: REGISTERED[name]() for name in REGISTERED},
    "merge": lambda target: [noisy_copy(target), TokenRecycling(), SuffixLookup()],
}


@pytest.mark.parametrize("make_drafter", DRAFTERS.values(), ids=DRAFTERS)
def test_the_output_stays_the_targets(target, make_drafter):
    speculation = TreeSpeculation(make_drafter(target), tree=NowAndThen(BestFirst(6)))
    assert identical(target, left_padded([9, 4]), speculation, max_new_tokens=24).num_draft_tokens > 0
