"""Merge: the union of trees against a plain recomputation; calibration learns which drafter is right, and where."""

import itertools
import math
import random

import pytest
import torch
from helpers.doc_snippets import run_snippet
from helpers.drafter_loop import VOCAB, Loop
from helpers.toy_models import TableLM, ToyScorer
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.drafters import DraftModel, Merge, SuffixLookup, TokenRecycling
from treespec.drafters.merge.merge import prune
from treespec.drafters.merge.opinion_pool import (
    MIN_REST,
    OMITTED_SHARE,
    RATE,
    OpinionPool,
    SiblingGroup,
    Vote,
    vote_cells,
)
from treespec.drafters.merge.union import UnionTree
from treespec.errors import ConfigError, InvalidTreeError
from treespec.lab.selftest.drafters import Planted
from treespec.literature import AdaptiveChain, Truncated
from treespec.policies import BestFirst, Chain, KAry
from treespec.protocols import FeatureDrafter
from treespec.tree import HostTree, TokenTree, TreeBatch

PROMPTS = [[1, 2, 3], [4], [5, 0, 2, 2, 1]]


class Fixed:
    """A drafter of given trees."""

    def __init__(self, *batches):
        self.batches, self.steps = list(batches), []

    def start(self, session):
        self.session = session

    def propose(self, max_depth):
        return self.batches[0] if len(self.batches) == 1 else self.batches.pop(0)

    def update(self, step):
        self.steps.append(step)

    def select_rows(self, rows):
        self.rows = rows


def valued(paths, tokens, values):
    batch = TreeBatch.from_trees([TokenTree.from_paths(paths, tokens)])
    return TreeBatch(batch.tokens, batch.parents, values=torch.tensor([values]))


def drafted(*tokens, prob=0.5):
    """A node per token below the root 0."""
    return valued([(rank,) for rank in range(len(tokens))], [0, *tokens], [1.0] + [prob] * len(tokens))


def run(merge, emit, steps, num_nodes=2, roots=(0,)):
    """The loop after as many steps, each of which emits `emit(step)` and then the root's token again."""
    loop = Loop(merge, [[root] for root in roots], BestFirst(num_nodes))
    for step in range(steps):
        loop.step(loop.propose(), emit=[[token, root] for token, root in zip(emit(step), roots, strict=True)])
    return loop


def test_merge_is_the_union_pruned_by_value():
    first = valued([(0,), (1,), (0, 0)], [9, 1, 2, 3], [1.0, 0.6, 0.3, 0.3])
    second = valued([(0,), (0, 0), (0, 1)], [9, 1, 3, 4], [1.0, 0.5, 0.4, 0.1])
    batch = Loop(Merge([Fixed(first), Fixed(second)]), [[9]], BestFirst(4), vocab_size=10).propose()
    assert batch.tokens.tolist() == [[9, 1, 3, 2]]
    assert batch.parents.tolist() == [[-1, 0, 1, 0]]
    # Below the root the first gives 1 .6, 2 .3, others .1; the second 1 .5, 2 a tenth of the other half, others .5.
    one, two, none = 0.6 * 0.5, 0.3 * 0.05, 0.1 * 0.5
    total = one + two + none
    # Below 1 the first gives 3 .5, 4 a tenth of the rest, others .5; the second 3 .8, 4 .2, others next to nothing.
    three, four, neither = 0.5 * 0.8, 0.05 * 0.2, 0.5 * MIN_REST
    expected = [1.0, one / total, one / total * three / (three + four + neither), two / total]
    torch.testing.assert_close(batch.values, torch.tensor([expected]))
    assert Loop(Merge([Fixed(first), Fixed(second)], num_nodes=9), [[9]], vocab_size=10).propose().max_nodes == 5


def draw_tree(data) -> HostTree:
    """A small tree with values that do not rise along a path, or without values."""
    tokens, parents, values = [7], [-1], [1.0]
    for _ in range(data.draw(st.integers(0, 7))):
        parent, token = data.draw(st.integers(0, len(tokens) - 1)), data.draw(st.integers(0, 2))
        if (parent, token) not in zip(parents, tokens, strict=True):
            tokens, parents = [*tokens, token], [*parents, parent]
            values.append(values[parent] * data.draw(st.floats(0, 1)))
    return HostTree(tokens, parents, values if data.draw(st.booleans()) else [])


def confidences_of(tree):
    """Token path to P(last token | the others), read off the tree one node at a time."""
    paths, confidences = [()], {}
    for node in range(1, len(tree.tokens)):
        parent = tree.parents[node]
        paths.append((*paths[parent], tree.tokens[node]))
        above = tree.values[parent] if tree.values else 0
        confidences[paths[-1]] = tree.values[node] / above if above > 0 else 1.0
    return confidences


def pooled(confidences, weights, path):
    """P(path's last token | the others), one drafter after the other, from each one's votes for all siblings."""
    if len([part for part in confidences if any(other[:-1] == path[:-1] for other in part)]) == 1:
        weights = [1.0] * len(weights)
    siblings = sorted({other for part in confidences for other in part if other[:-1] == path[:-1]})
    mass = dict.fromkeys([*siblings, None], 1.0)
    for part, weight in zip(confidences, weights, strict=True):
        votes = [part[other] for other in siblings if other in part]
        rest = max(1 - sum(votes), MIN_REST)
        for other in mass if votes else ():
            prob = rest if other is None else max(part.get(other, rest * OMITTED_SHARE), 1e-3)
            mass[other] *= prob**weight
    return mass[path] / sum(mass.values())


@given(st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_best_of_the_union_are_kept(data):
    trees = [draw_tree(data) for _ in range(data.draw(st.integers(2, 3)))]
    union, num_nodes = UnionTree(7, trees), data.draw(st.integers(1, 9))
    weights = [data.draw(st.floats(0, 2)) for _ in trees]
    pool = OpinionPool(weights)
    confidences = [confidences_of(tree) for tree in trees]
    expected = {(): 1.0}
    for path in sorted({path for part in confidences for path in part}, key=len):
        expected[path] = expected[path[:-1]] * pooled(confidences, weights, path)
    best = prune([union], pool, num_nodes, is_chain=False)
    assert best.is_valid
    assert best.values is not None
    assert best.values[0].tolist() == pytest.approx(sorted(expected.values(), reverse=True)[:num_nodes])
    assert len(union.values(pool)) == len(expected)
    (chain,) = prune([union], pool, num_nodes, is_chain=True).host_trees()
    assert chain.parents == list(range(-1, len(chain.tokens) - 1))
    chains = [path for path in expected if len(path) < num_nodes]
    sums = [sum(expected[path[:depth]] for depth in range(len(path) + 1)) for path in chains]
    assert sum(chain.values) == pytest.approx(max(sums))


@given(st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_values_never_rise_along_a_path_whatever_was_learned(data):
    pool = OpinionPool([1.0, 0.4])
    for _ in range(10):
        union = UnionTree(7, [draw_tree(data) for _ in range(2)])
        values = union.values(pool)
        assert all(0 <= values[node] <= values[union.parents[node]] for node in range(1, len(values)))
        for group, right in union.outcomes(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))):
            pool.update(group, right)


def test_a_weight_follows_the_gradient_of_the_outcome():
    """Against a finite difference of the outcome's log probability, without calibration."""
    group = SiblingGroup([{0: Vote(0, 0.6), 1: Vote(0, 0.2)}, {1: Vote(1, 0.1)}], [0, 1], 1)
    for right in (0, 1, None):
        pool, step = OpinionPool([0.9, 0.7]), 1e-6

        def log_prob(weights, right=right):
            probs = OpinionPool(weights).probs(group)
            return math.log(1 - sum(probs) if right is None else probs[right])

        slopes = [
            (log_prob([0.9 + step * (voter == 0), 0.7 + step * (voter == 1)]) - log_prob([0.9, 0.7])) / step
            for voter in (0, 1)
        ]
        pool.update(group, right)
        moved = [(after - before) / RATE for after, before in zip(pool.weights, (0.9, 0.7), strict=True)]
        assert moved == pytest.approx(slopes, rel=1e-3)


def test_weights_move_less_with_every_outcome_and_are_never_negative():
    group, moves = SiblingGroup([{0: Vote(0, 0.6)}, {1: Vote(0, 0.6)}], [0, 1], 1), []
    for num_outcomes in (0, 150):
        pool = OpinionPool([0.01, 0.5])
        pool._num_outcomes = num_outcomes
        pool.update(group, 1)
        moves.append(pool.weights[1] - 0.5)
        assert pool.weights[0] >= 0
    assert moves[0] / moves[1] == pytest.approx(2)


def test_every_vote_for_a_child_is_calibrated():
    """Both drafters' first choices are right ten times over: both are believed more, and wrong ones less."""
    group = SiblingGroup([{0: Vote(0, 0.3), 1: Vote(0, 0.3)}, {1: Vote(1, 0.3)}], [0, 1], 1)
    pool = OpinionPool([1.0, 1.0])
    for _ in range(10):
        pool.update(group, 0)
    for voter, rank, is_right in ((0, 0, True), (1, 0, True), (1, 1, False)):
        vote = Vote(rank, 0.3)
        believed = pool.calibration.estimate(0.3, vote_cells(voter, 1, vote))
        assert believed > 0.32 if is_right else believed < 0.3, (voter, rank)


def test_weights_are_learned_and_kept_across_calls():
    good, bad = drafted(1), valued([(0,), (0, 0)], [0, 2, 2], [1.0, 1.0, 1.0])
    merge = Merge([Fixed(good), Fixed(bad)])
    assert run(merge, lambda _: [1], 0).propose().tokens.tolist() == [[0, 2]], "by its own confidence"
    assert run(merge, lambda _: [1], 30).propose().tokens.tolist() == [[0, 1]]
    assert run(merge, lambda _: [1], 0).propose().tokens.tolist() == [[0, 1]]


def test_a_merge_starts_with_a_copy_of_anothers_pool():
    first = Merge([Fixed(drafted(1)), Fixed(drafted(2))])
    run(first, lambda _: [2], 40)
    known = list(first.pool.weights)
    second = Merge([Fixed(drafted(1)), Fixed(drafted(2))], pool=first.pool)
    assert second.pool.weights == known != [1.0, 1.0]
    run(second, lambda _: [1], 40)
    assert first.pool.weights == known != second.pool.weights
    with pytest.raises(ConfigError, match="of 2 drafters, the merge of 3"):
        Merge([Fixed(), Fixed(), Fixed()], pool=first.pool)


def test_merge_learns_ranks_and_depths():
    merge = Merge([Fixed(drafted(1, 2, prob=0.4)), Fixed(drafted(3, prob=0.6))])
    assert run(merge, lambda _: [2], 30).propose().tokens.tolist() == [[0, 2]], "the second sibling is the right one"
    deep = valued([(0,), (0, 0)], [0, 1, 2], [1.0, 0.9, 0.81])
    merge = Merge([Fixed(deep), Fixed(drafted(3, prob=0.1))])
    loop = Loop(merge, [[0]], BestFirst(3))
    assert loop.propose().tokens.tolist() == [[0, 1, 2]]
    for step in range(400):  # The first drafter's first level is right, its second never.
        loop.step(loop.propose(), emit=[[1, 4, 0] if step % 4 else [3, 0]])
    assert loop.propose().tokens.tolist() == [[0, 1, 3]]


def test_voters_that_err_together_are_not_counted_twice():
    """Two copies of a drafter that is right at .4 are worth .4 and not .64: the third, right at .55, goes first."""
    first, twin, third = [drafted(1), drafted(2)], [drafted(1), drafted(2)], [drafted(3, prob=0.6)]
    calls = 400
    merge = Merge([Fixed(*first * calls), Fixed(*twin * calls), Fixed(*third)])
    random_ = random.Random(3)
    loop = run(merge, lambda step: [random_.choices([1 + step % 2, 3, 4], [0.4, 0.55, 0.05])[0]], calls)
    assert loop.propose().tokens.tolist() == [[0, 3]]


def accepted_per_step(drafter, truth, num_nodes, policy=None):
    """Mean accepted tokens per step over the text `truth`."""
    loop = Loop(drafter, [[0]], policy or BestFirst(num_nodes), vocab_size=50)
    position = num_steps = 0
    while position < len(truth) - 40:
        batch = loop.propose()
        assert batch.max_nodes <= num_nodes
        tree, node, emitted = batch.trees[0], 0, []
        while node is not None:
            emitted.append(truth[position + len(emitted)])
            node = next((child for child in tree.children(node) if tree.token(child) == emitted[-1]), None)
        loop.step(batch, emit=[emitted])
        position, num_steps = position + len(emitted), num_steps + 1
    return position / num_steps - 1


TRUTH = [random.Random(0).randrange(50) for _ in range(800)]


def planted(miss_rate, seed, max_width=4):
    return Planted([TRUTH], 50, max_width=max_width, max_depth=3, miss_rate=miss_rate, seed=seed)


@pytest.mark.parametrize(("policy", "width"), [(BestFirst(13), 4), (Chain(3), 1)], ids=["tree", "chain"])
def test_a_useless_drafter_does_no_harm(monkeypatch, policy, width):
    """13 nodes hold a planted tree of 3 levels of 4 whole, so every useless node that is kept costs a good one."""

    def parts():
        return [planted(1.0, 1, width), planted(0.2, 2, width)]

    alone = accepted_per_step(planted(0.2, 2, width), TRUTH, policy.max_nodes, policy)
    assert accepted_per_step(Merge(parts()), TRUTH, policy.max_nodes, policy) > 0.96 * alone
    monkeypatch.setattr("treespec.drafters.merge.opinion_pool.PRIOR_TRIALS", 1e9)
    monkeypatch.setattr("treespec.drafters.merge.opinion_pool.RATE", 0.0)
    uncalibrated = accepted_per_step(Merge(parts()), TRUTH, policy.max_nodes, policy)
    assert uncalibrated < 0.9 * alone


def test_two_half_good_drafters_are_better_than_either():
    alone = [accepted_per_step(planted(0.5, seed), TRUTH, 13) for seed in (1, 2)]
    assert accepted_per_step(Merge([planted(0.5, 1), planted(0.5, 2)]), TRUTH, 13) > 1.1 * max(alone)


def test_rows_are_learned_from_separately():
    trees = TreeBatch.from_trees([TokenTree.chain([0, 1]), TokenTree.chain([5, 2, 3])])
    bare = TreeBatch.from_trees([TokenTree.chain([0]), TokenTree.chain([5, 4])])
    merge = Merge([Fixed(trees), Fixed(bare)])
    loop = run(merge, lambda _: [1, 4], 60, num_nodes=3, roots=(0, 5))
    batch = loop.propose()
    assert batch.tokens.tolist() == [[0, 1, 0], [5, 4, 2]], "row 0: the first was always right; row 1: the other"
    assert batch.parents.tolist() == [[-1, 0, -2], [-1, 0, 0]]


@pytest.mark.parametrize(("policy", "longest"), [(AdaptiveChain(2, max_k=3), 3), (Truncated(Chain(3)), 4)])
def test_under_a_chain_one_path_of_its_length_is_kept(policy, longest):
    loop = Loop(Merge([TokenRecycling(), SuffixLookup()]), [[1, 2, 3, 1, 2], [1, 1, 1, 1, 1]], policy)
    lengths = set()
    for step in range(8):
        batch = loop.propose()
        assert batch.is_chain
        lengths.add(batch.max_nodes)
        values = batch.values[0].tolist()
        assert all(above >= below for above, below in itertools.pairwise(values))
        loop.step(batch, torch.randn(*batch.tokens.shape, VOCAB, generator=torch.Generator().manual_seed(step)))
    assert max(lengths) == longest


def test_merge_reads_the_hidden_states_that_its_parts_read():
    class Features(Fixed):
        def __init__(self, *layers):
            super().__init__(drafted(1))
            self.hidden_layers = layers

    assert Merge([SuffixLookup(), TokenRecycling()]).hidden_layers == ()
    merge = Merge([Features(3, 1), SuffixLookup(), Merge([Features(-1, 3), SuffixLookup()])])
    assert isinstance(merge, FeatureDrafter)
    assert merge.hidden_layers == (-1, 1, 3)


def test_merge_refuses_sampled_children():
    parts = [DraftModel(ToyScorer(TableLM(VOCAB))) for _ in range(2)]
    loop = Loop(Merge(parts), [[1, 1]], KAry((2,), "without_replacement"))
    with pytest.raises(ConfigError, match="DraftModel proposed sampled children"):
        loop.propose()
    for bad in ([], [SuffixLookup()], [SuffixLookup(), "ngram"], [SuffixLookup, TokenRecycling], 3):
        with pytest.raises(ConfigError, match="two or more drafters"):
            Merge(bad)
    with pytest.raises(ConfigError, match="twice"):
        Merge([parts[0], parts[1], parts[0]])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_merge_refuses_values_that_are_not_finite(value):
    merge = Merge([Fixed(drafted(1)), Fixed(valued([(0,), (1,)], [0, 1, 2], [1.0, 0.5, value]))])
    with pytest.raises(InvalidTreeError, match="Fixed gave a node a value that is NaN or infinite"):
        Loop(merge, [[0]], BestFirst(3)).propose()
    padded = TreeBatch.from_trees([TokenTree.chain([0]), TokenTree.chain([0, 2])])
    padded = TreeBatch(padded.tokens, padded.parents, values=torch.tensor([[1.0, value], [1.0, 0.5]]))
    Loop(Merge([Fixed(padded), Fixed(padded)]), [[0], [0]], BestFirst(3)).propose()  # Values at padding are ignored.


def test_the_snippet_of_the_docs_runs():
    names = run_snippet("Several drafters in one tree")
    assert names["speculation"].stats.mean_acceptance_length > 1.2
