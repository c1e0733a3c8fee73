"""Selected children of other drafters around drawn ones: the output distribution, enumerated, and the trees."""

import pytest
import torch
from helpers.drafter_loop import VOCAB, Loop
from helpers.toy_models import TableLM, ToyScorer

from treespec.drafters import DraftModel, Merge, SuffixLookup
from treespec.drafters.merge.grafts import Rest, add_best
from treespec.drafters.merge.opinion_pool import OpinionPool
from treespec.drafters.merge.union import UnionTree
from treespec.policies import BestFirst, Chain
from treespec.testing import (
    IID,
    MIXED,
    WITHOUT_REPLACEMENT,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    exact_distribution,
)
from treespec.tree import HostTree, TokenTree
from treespec.verification import RULES

LOOKUP = HostTree([0, 1, 2, 0, 1, 2], [-1, 0, 0, 1, 2, 1], [1.0, 0.6, 0.3, 0.5, 0.3, 0.05])


class Grafting:
    """A toy drafter's trees with a lookup's nodes; `is_wrong` takes a drawn child away for a selected one."""

    def __init__(self, scheme, num_nodes, is_exact=True, is_wrong=False):
        self.toy = ToyDrafter(scheme, FixedShape.kary(2), (RandomDistributions(3, 11, is_exact),))
        self.num_nodes, self.is_wrong = num_nodes, is_wrong

    def __call__(self, rng):
        tree = self.toy(rng)
        drawn = HostTree(tree.tokens, tree.parents, [1.0, *[0.4] * (tree.num_nodes - 1)])
        if self.is_wrong and tree.tokens[-1] == 1:
            last = tree.num_nodes - 1
            columns = (tree.tokens, tree.parents, tree.draft_probs, tree.base_distributions, tree.contexts)
            for column in (*columns, tree.ranks, tree.child_lists):
                column.pop()
            tree.child_lists[0].remove(last)
            drawn = HostTree(tree.tokens, tree.parents, [1.0, *[0.4] * (last - 1)])
        grown = add_best(drawn, UnionTree(0, [drawn, LOOKUP]), OpinionPool([1.0, 1.0]), self.num_nodes)
        tree.is_width_fixed = False
        for token, parent in list(zip(grown.tokens, grown.parents, strict=True))[tree.num_nodes :]:
            tree.add(parent, token, None, None)
        return tree


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
@pytest.mark.parametrize("scheme", [WITHOUT_REPLACEMENT, IID, MIXED])
def test_selected_children_around_drawn_ones_keep_the_targets_distribution(rule, scheme):
    drafter = Grafting(scheme, 6)
    found = exact_distribution(RULES[rule], drafter, RandomDistributions(3, 1, is_exact=True), depth=2)
    assert found.error == 0
    alone = exact_distribution(RULES[rule], drafter.toy, RandomDistributions(3, 1, is_exact=True), depth=2)
    assert found.mean_accepted > alone.mean_accepted


def test_taking_a_drawn_child_away_is_found():
    drafter = Grafting(WITHOUT_REPLACEMENT, 4, is_wrong=True)
    assert exact_distribution(RULES["traversal"], drafter, RandomDistributions(3, 1, is_exact=True), 2).error > 1e-3


def merged(lookup=None):
    """A draft model, which draws, and a lookup that knows the text; both are deterministic by the loop's seed."""
    scorer = ToyScorer(TableLM(VOCAB))
    vars(scorer)["num_weights"] = 100
    return Merge([lookup or SuffixLookup(), DraftModel(scorer)])


PROMPTS = [[1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2], [3, 3]]


@pytest.mark.parametrize("num_nodes", [2, 9])
def test_a_sampling_call_draws_by_the_model_and_adds_the_lookups_nodes(num_nodes):
    loop = Loop(merged(), PROMPTS, BestFirst(num_nodes), seed=3)
    for step in range(4):
        batch = loop.propose()
        assert batch.max_nodes <= num_nodes
        assert batch.draft_probs is not None
        assert batch.draft_index is not None
        is_drawn = batch.draft_index >= 0
        assert is_drawn.any(1).all()
        if num_nodes == 9 and step == 0:  # The first row's text repeats.
            assert (~is_drawn[0] & (batch.parents[0] >= 0)).any()
        loop.step(batch)
    assert Loop(merged(), PROMPTS, BestFirst(num_nodes), is_sampling=False).propose().draft_probs is None


def test_the_drawn_children_are_those_of_the_smaller_tree():
    batch = Loop(merged(), PROMPTS[:1], BestFirst(8), seed=3).propose()
    model = DraftModel(ToyScorer(TableLM(VOCAB)))
    alone = Loop(model, PROMPTS[:1], BestFirst(6), seed=3).propose()
    assert batch.tokens[:, :6].tolist() == alone.tokens.tolist()
    assert batch.parents[:, :6].tolist() == alone.parents.tolist()
    assert batch.draft_index is not None
    assert alone.draft_index is not None
    assert batch.draft_index[:, :6].tolist() == alone.draft_index.tolist()
    assert torch.equal(batch.draft_probs, alone.draft_probs)


class Asked(SuffixLookup):
    """A lookup that counts how often it was asked."""

    num_asked = 0

    def propose(self, max_depth):
        self.num_asked += 1
        return super().propose(max_depth)


def test_nothing_else_is_asked_for_where_a_chain_is_drawn():
    merge = merged(lookup := Asked())
    loop = Loop(merge, PROMPTS[:1], Chain(3), seed=3)
    batch = loop.propose()
    assert batch.draft_index is not None
    assert batch.draft_index[0].tolist() == [-1, 0, 1, 2]
    loop.step(batch)
    assert not lookup.num_asked
    Loop(merge, PROMPTS[:1], Chain(3), is_sampling=False).propose()
    assert lookup.num_asked


@pytest.mark.parametrize(("emitted", "least", "most"), [([0], 4, 24), ([3, 4, 5, 1, 2], 64, 64)])
def test_a_lookup_is_asked_as_often_as_it_brings_tokens(emitted, least, most):
    """In 64 sampled steps after a text that repeats."""
    loop = Loop(merged(lookup := Asked()), PROMPTS[:1], BestFirst(8), seed=3)
    for _ in range(64):
        loop.step(loop.propose(), emit=[emitted])
    assert least <= lookup.num_asked <= most


def test_rests_follow_what_a_drafter_brings():
    rest, asked = Rest(), []
    for _ in range(200):
        asked.append(rest.begin_step())
        if asked[-1]:
            rest.learn(0.0)
    assert asked[0]
    assert sum(asked[-64:]) == 4  # One in sixteen.
    while not rest.begin_step():
        pass
    rest.learn(2.0)  # One step that brings much ends the rest.
    assert all(rest.begin_step() for _ in range(5))


def test_siblings_drawn_twice_keep_their_numbers():
    drawn = HostTree([7, 1, 1, 2], [-1, 0, 0, 2], [1.0, 0.5, 0.5, 0.2])
    other = HostTree([7, 1, 3, 2], [-1, 0, 1, 1], [1.0, 0.9, 0.8, 0.1])
    union = UnionTree(7, [drawn, other])
    grown = add_best(drawn, union, OpinionPool([1.0, 1.0]), 9)
    assert (grown.tokens, grown.parents) == ([7, 1, 1, 2, 3], [-1, 0, 0, 2, 1])
    assert TokenTree(torch.tensor(grown.tokens), torch.tensor(grown.parents)).num_nodes == 5
