"""Drafters survive steps in which they are not asked: what they propose afterwards is right."""

import pytest
from helpers import dflash_files, eagle3_files
from helpers.head_runs import check_distributions, left_padded, make, run
from helpers.tiny import identical, noisy_copy, tiny_llama

from treespec import BestFirst, Control, KAry, TreeSpeculation
from treespec.drafters import SuffixLookup, TokenRecycling


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
    "eagle3": eagle3_files.shape(hidden=32),
    "peagle": eagle3_files.parallel(),
    "dflash": dflash_files.shape(),
}


@pytest.mark.parametrize("made", HEADS.values(), ids=HEADS)
def test_heads_read_what_they_missed(tmp_path, target, made):
    drafter, plain = make(tmp_path, target, made)
    run(target, drafter, left_padded([9, 4, 6]), 14, do_sample=True, tree=NowAndThen(KAry((2, 2))), top_k=0)
    assert check_distributions(target, drafter, plain) > 30


def test_the_output_stays_the_targets(target):
    drafters = [noisy_copy(target), TokenRecycling(), SuffixLookup()]
    speculation = TreeSpeculation(drafters, tree=NowAndThen(BestFirst(6)))
    assert identical(target, left_padded([9, 4]), speculation, max_new_tokens=24).num_draft_tokens > 0
