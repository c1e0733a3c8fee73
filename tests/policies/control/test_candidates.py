"""Candidates of measured control: trees that stop at the level that does not pay."""

import torch

from treespec.drafters.base import can_use_heap
from treespec.policies import BestFirst
from treespec.policies.control import StoppedBestFirst
from treespec.protocols import Proposal


class Source:
    """Two candidates after every token, and a count of passes."""

    root_tokens = torch.zeros(1, dtype=torch.int64)
    is_sampling, generator = True, torch.Generator()

    def __init__(self, *probs, is_dense=False):
        self.probs, self.is_dense, self.num_passes = probs, is_dense, 0

    def expand(self, frontier):
        self.num_passes += 1
        shape = (*frontier.tokens.shape, len(self.probs))
        tokens = None if self.is_dense else torch.arange(len(self.probs)).expand(shape)
        return Proposal(torch.tensor(self.probs).expand(shape), tokens)


def test_a_tree_stops_at_the_level_that_gains_too_little():
    """Levels gain 0.9, then 0.81, then 0.729 while there is room for their nodes."""
    for least_gain, num_passes in ((0.0, 7), (0.75, 3), (0.85, 2), (1.0, 1)):
        policy, source = StoppedBestFirst(64), Source(0.6, 0.3)
        policy.least_gain = least_gain
        trees = policy.grow(source, 20)
        assert source.num_passes == policy.num_passes == num_passes
        assert int(trees.depths.max()) == num_passes


def test_sampled_trees_do_not_stop_by_what_was_drawn():
    policy, source = StoppedBestFirst(8), Source(0.5, 0.3, 0.2, is_dense=True)
    policy.least_gain = 100.0
    trees = policy.grow(source, 20)
    assert trees.draft_probs is not None
    assert source.num_passes == policy.num_passes > 1


def test_lookups_grow_them_by_a_heap():
    assert can_use_heap(StoppedBestFirst(8))
    assert not can_use_heap(type("Own", (BestFirst,), {})(8))
