"""The parts of measured control: trees that stop where a level does not pay, times by rows, nodes and context."""

import numpy as np
import pytest
import torch

from treespec.drafters.host_trees import can_use_heap
from treespec.policies import BestFirst
from treespec.policies.control import StoppedBestFirst
from treespec.policies.control.acceptance import Acceptance
from treespec.policies.control.candidates import Candidates
from treespec.policies.control.times import DraftTimes, PassTimes
from treespec.protocols import Proposal
from treespec.tree import TokenTree

CURVE = np.linspace(30.0, 60.0, 65)


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
    for least_gain, num_passes in ((0.0, 6), (0.75, 3), (0.85, 2), (1.0, 1)):
        policy, source = StoppedBestFirst(64, 6), Source(0.6, 0.3)
        policy.least_gain = least_gain
        trees = policy.grow(source, 20)
        assert source.num_passes == policy.num_passes == num_passes
        assert int(trees.depths.max()) == num_passes


def test_sampled_trees_do_not_stop_by_what_was_drawn():
    policy, source = StoppedBestFirst(8, 4), Source(0.5, 0.3, 0.2, is_dense=True)
    policy.least_gain = 100.0
    trees = policy.grow(source, 20)
    assert trees.draft_probs is not None
    assert source.num_passes == policy.num_passes > 1


def test_lookups_grow_them_by_a_heap():
    assert can_use_heap(StoppedBestFirst(8, None))
    assert not can_use_heap(type("Own", (BestFirst,), {})(8))


def test_a_pass_takes_longer_where_the_context_is_long():
    """Learned from the steps served, by powers of two; a context never met is like the nearest one."""
    times = PassTimes({1: 30.0, 16: 45.0})
    for _ in range(200):
        times.update(1, 100, 8, 37.0)
        times.update(1, 3000, 8, 74.0)
    short, long, longer = (times.curve(1, context)[8] for context in (100, 3000, 9000))
    assert short == pytest.approx(37.0, rel=0.05)
    assert long == pytest.approx(74.0, rel=0.05)
    assert longer == long


def test_draft_times_tell_passes_from_nodes_and_ignore_an_outlier():
    times, rng = DraftTimes(level_ms=1.0), np.random.default_rng(0)
    for number in range(200):
        passes, nodes = int(rng.integers(1, 8)), int(rng.integers(4, 32))
        times.update(passes, nodes, 500.0 if number % 40 == 39 else 2.0 + 6.0 * passes + 0.1 * nodes)
    assert times.level_ms == pytest.approx(6.0, abs=0.5)
    assert times.predict(np.array([3.0]), np.array([16])) == pytest.approx([21.6], rel=0.1)


def shown(candidates, chosen, tree, values, emitted, steps=200):
    """What candidates are expected to accept after many steps like this one."""
    acceptance = Acceptance(candidates)
    for _ in range(steps):
        drafted = acceptance.read(tree, values)
        acceptance.update(drafted, emitted, candidates.names.index(chosen), 2, CURVE, loss=0.0)
    return dict(zip(candidates.names, acceptance.expected()[0], strict=True))


def test_a_tree_shows_smaller_trees_chains_and_a_little_of_larger_ones():
    tree = TokenTree(torch.tensor([9, 1, 2, 3]), torch.tensor([-1, 0, 0, 1]))
    found = shown(Candidates(16), "tree of 4", tree, [1.0, 0.5, 0.3, 0.25], [1, 3, 7])
    assert found["chain of 1"] == pytest.approx(1.0, abs=0.1)
    assert found["chain of 2"] == pytest.approx(2.0, abs=0.1)
    assert found["tree of 4"] == pytest.approx(2.0, abs=0.1)
    assert found["tree of 4"] < found["tree of 8"] < found["tree of 16"]


def test_a_shallow_tree_says_that_deeper_ones_gain_less_and_less():
    tree = TokenTree(torch.tensor([9, 1, 2, 3]), torch.tensor([-1, 0, 0, 1]))
    candidates = Candidates(16, is_sampled=True)
    found = shown(candidates, "tree of 8, depth 2", tree, [1.0, 0.5, 0.3, 0.25], [1, 3, 7])
    by_depth = [found[f"tree of 8, depth {depth}"] for depth in (2, 3, 4, 6)] + [found["tree of 8"]]
    assert by_depth == sorted(by_depth)
    assert by_depth[0] == pytest.approx(2.0, abs=0.1)
    assert by_depth[1] == pytest.approx(2.7, abs=0.2)
