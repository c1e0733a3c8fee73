"""Policies: invariants of every tree, exact shapes and distributions, brute-force oracles."""

from itertools import product

import numpy as np
import pytest
import torch
from helpers.grown_trees import checked, rank_paths, token_path
from helpers.toy_models import TableLM, TableSource
from hypothesis import given, settings
from hypothesis import strategies as st

import treespec.policies.children as children_module
from treespec.drafters.base import can_use_heap
from treespec.errors import ConfigError
from treespec.literature import SpecExec, StochasticBeam
from treespec.policies import BestFirst, Chain, Control, KAry, Paths, TreeBuilder, as_policy
from treespec.policies.heap import grow_best_first
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TokenTree

SCHEMES = [SELECTED, IID, WITHOUT_REPLACEMENT, MIXED]
SHAPE = [(0,), (1,), (0, 0), (2,), (0, 1), (2, 0), (0, 0, 0), (2, 0, 0), (2, 0, 1)]


def make_policy(kind, children, size):
    """A policy, its node budget and its greatest depth."""
    if kind == "chain":
        return Chain(size, children), size + 1, size
    if kind == "paths":
        return Paths(SHAPE, children), len(SHAPE) + 1, 3
    if kind == "k-ary":
        return KAry((2, 1, 3)[: 1 + size % 3], children), 12, 3
    if kind == "stochastic beam":
        return StochasticBeam(1 + size % 5, 3, children), 1 + 3 * (1 + size % 5), 3
    return BestFirst(size, children, beam=1 + size % 4, depth=3), size, 3


@st.composite
def grown_trees(draw):
    kind = draw(st.sampled_from(["chain", "paths", "k-ary", "stochastic beam", "best-first"]))
    allowed = {"best-first": SCHEMES[:3], "stochastic beam": [SELECTED, WITHOUT_REPLACEMENT]}.get(kind, SCHEMES)
    children = draw(st.sampled_from(allowed))
    policy, budget, depth = make_policy(kind, children, draw(st.integers(1, 9)))
    vocab_size, seed = draw(st.integers(1, 7)), draw(st.integers(0, 50))
    num_candidates = draw(st.sampled_from([None, min(3, vocab_size)])) if children == SELECTED else None
    roots = draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=3))
    source = TableSource(
        roots,
        TableLM(vocab_size, seed),
        num_candidates=num_candidates,
        is_sparse=draw(st.booleans()),
        seed=seed,
        dtype=torch.float64,
    )
    max_depth = draw(st.integers(1, 4))
    return policy, policy.grow(source, max_depth), source, children, budget, min(depth, max_depth)


@given(grown_trees())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_every_tree_keeps_the_invariants(grown):
    policy, batch, source, children, budget, depth = grown
    assert bool(batch.is_valid)
    assert batch.tokens.shape[1] == int(batch.num_nodes.max()) <= max(budget, 1)
    for row in range(batch.num_rows):
        tree = checked(batch, row)
        assert tree.token(0) == int(source.root_tokens[row])
        assert max(tree.depths) <= depth
        for node in range(1, tree.num_nodes):
            parent = tree.parent_list[node]
            prob = source.probs(token_path(tree, parent))[tree.token(node)]
            assert prob > 0
            siblings = tree.children(parent)
            rank = siblings.index(node)
            if children != IID:
                assert len({tree.token(i) for i in siblings}) == len(siblings)
            if children != IID and (children == SELECTED or not isinstance(policy, BestFirst)):
                assert batch.values[row, node] == pytest.approx(float(batch.values[row, parent] * prob), rel=1e-4)
            if children == SELECTED and rank > 0:
                assert prob <= source.probs(token_path(tree, parent))[tree.token(siblings[rank - 1])]
            check_distribution(tree, node, source, children)


def check_distribution(tree, node, source, children):
    """The stored distribution is the one that the node was drawn from given its earlier siblings."""
    parent = tree.parent_list[node]
    siblings = tree.children(parent)
    rank = siblings.index(node)
    probs = source.probs(token_path(tree, parent)).clone()
    stored = tree.draft_probs_of(node)
    is_all_selected = children == MIXED and stored is None and len(siblings) == int((probs > 0).sum())
    if children == SELECTED or (children == MIXED and rank > 0) or is_all_selected:
        assert stored is None
        return
    if children == WITHOUT_REPLACEMENT:
        probs[[tree.token(i) for i in siblings[:rank]]] = 0
    if children == MIXED:
        probs[[tree.token(i) for i in siblings[1:]]] = 0
    torch.testing.assert_close(stored, probs / probs.sum(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("children", SCHEMES)
def test_paths_keep_their_shape(children):
    batch = Paths(SHAPE, children).grow(TableSource([1, 2], TableLM(6)), max_depth=9)
    for tree in batch.trees:
        assert sorted(rank_paths(tree)) == sorted(SHAPE)
        assert tree.sampling_schemes <= {children, IID}
    assert batch.is_width_fixed
    literal = Paths(str(SHAPE), children).grow(TableSource([1, 2], TableLM(6)), max_depth=9)
    assert torch.equal(literal.tokens, batch.tokens)


def test_selected_paths_take_the_tokens_of_their_ranks():
    source = TableSource([3], TableLM(6), is_sampling=False)
    tree = Paths(SHAPE).grow(source, 9).trees[0]
    for node, ranks in enumerate(rank_paths(tree), start=1):
        path = (3,)
        for rank in ranks:
            path = (*path, int(source.probs(path).argsort(descending=True)[rank]))
        assert token_path(tree, node) == path


def test_k_ary_is_the_full_product():
    batch = KAry((1, 2, 3)).grow(TableSource([0], TableLM(5)), 9)
    expected = [p[:d] for p in product(range(1), range(2), range(3)) for d in (1, 2, 3)]
    assert sorted(rank_paths(batch.trees[0])) == sorted(set(expected))
    assert KAry((1, 2, 3)).max_nodes == batch.max_nodes == 10


def test_mixed_puts_the_sample_first_and_excludes_the_selected():
    source = TableSource([0] * 500, TableLM(6))
    batch = KAry((3,), MIXED).grow(source, 1)
    best = source.probs((0,)).topk(2).indices
    assert (batch.tokens[:, 2:] == best).all()
    assert (torch.as_tensor(batch.draft_index)[:, 1] >= 0).all()
    assert (torch.as_tensor(batch.draft_index)[:, 2:] == -1).all()
    assert not torch.isin(batch.tokens[:, 1], best).any()


def best_paths(source, root, num_nodes, max_depth, vocab_size):
    """Brute force: all token paths by falling probability."""
    probs = {}
    for depth in range(1, max_depth + 1):
        for path in product(range(vocab_size), repeat=depth):
            prob = 1.0
            for i in range(depth):
                prob *= float(source.probs((root, *path[:i]))[path[i]])
            probs[path] = prob
    return sorted(probs, key=lambda path: (-probs[path], len(path)))[: num_nodes - 1], probs


@pytest.mark.parametrize("num_nodes", [1, 5, 24])
@pytest.mark.parametrize("num_candidates", [None, 4])
def test_best_first_is_the_exact_top(num_nodes, num_candidates):
    source = TableSource([0, 1, 3], TableLM(4, scale=2.0), is_sampling=False, num_candidates=num_candidates)
    batch = BestFirst(num_nodes, depth=4).grow(source, 9)
    for row, tree in enumerate(batch.trees):
        expected, probs = best_paths(source, tree.token(0), num_nodes, 4, vocab_size=4)
        got = [token_path(tree, node)[1:] for node in range(1, tree.num_nodes)]
        assert sorted(got) == sorted(expected)
        values = [probs[path] for path in got]
        assert torch.as_tensor(batch.values)[row, 1 : tree.num_nodes].tolist() == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("is_sampling", [False, True])
def test_a_least_value_saves_passes_that_hardly_gain(is_sampling):
    def grow(min_value):
        source = TableSource([0, 1, 2], TableLM(9, scale=1.5), is_sampling)
        return BestFirst(16, min_value=min_value).grow(source, 9), sum(source.widths)

    (exact, num_expanded), (near, num_fewer) = grow(0.0), grow(0.1)
    assert num_fewer < 0.7 * num_expanded
    assert near.num_nodes.tolist() == exact.num_nodes.tolist()
    parents = {(row, above) for row, tree in enumerate(near.trees) for above in tree.parents[1:]}
    assert all(torch.as_tensor(near.values)[row, above] > 0.1 for row, above in parents)
    if not is_sampling:
        assert (near.values.sum(1) > 0.9 * exact.values.sum(1)).all()


def test_a_beam_and_a_depth_bound_the_passes():
    source = TableSource([0, 1], TableLM(9, scale=0.3), is_sampling=False)
    BestFirst(30, beam=3, depth=3).grow(source, 9)
    assert len(source.widths) == 3
    assert max(source.widths) <= 3
    certain = TableSource([0], TableLM(5, scale=60.0), is_sampling=False)
    BestFirst(30).grow(certain, 99)
    assert len(certain.widths) == 8, "a draft model pays a pass per level"
    candidates = TableSource([0], TableLM(5, scale=60.0), is_sampling=False, num_candidates=2)
    assert max(BestFirst(30).grow(candidates, 99).trees[0].depths) > 8, "candidates cost nothing"
    small = TableSource([0], TableLM(9, scale=0.0), is_sampling=False)
    BestFirst(4).grow(small, 9)
    assert len(small.widths) == 1, "no second level can enter the best three"


@pytest.mark.parametrize("num_candidates", [None, 3])
@pytest.mark.parametrize("is_sampling", [True, False])
def test_the_host_reads_once_per_pass(is_sampling, num_candidates, monkeypatch):
    reads = []
    monkeypatch.setattr(children_module, "download", lambda *tensors: reads.append(1) or list(tensors))
    best = BestFirst(9), BestFirst(9, beam=2), BestFirst(9, SELECTED, min_gain=0.2), SpecExec(9, beam=2)
    for policy in (Chain(3), Paths(SHAPE), KAry((2, 2)), *best, StochasticBeam(3, 2)):
        reads.clear()
        source = TableSource([0, 1, 2], TableLM(6), is_sampling, num_candidates)
        assert policy.grow(source, 4).max_nodes <= policy.max_nodes
        assert len(reads) == len(source.widths) > 1


def test_candidates_can_only_be_selected():
    for policy, children in product((KAry, BestFirst), ("auto", IID, WITHOUT_REPLACEMENT)):
        source = TableSource([0], TableLM(5), num_candidates=3)
        made = policy((2,) if policy is KAry else 4, children)
        if children == "auto":
            assert made.grow(source, 3).sampling_schemes == {SELECTED}
        else:
            with pytest.raises(ConfigError, match="must be selected"):
                made.grow(source, 3)


def test_as_policy():
    assert isinstance(as_policy("auto"), Control)
    assert as_policy("[(0,), (1,), (0, 0)]").max_nodes == as_policy([(0,), (1,), (0, 0)]).max_nodes == 4
    chain = Chain(3)
    assert as_policy(chain) is chain
    assert [as_policy(n).min_value for n in (1, 4, 8, 16, 64)] == pytest.approx(
        [2.2 / 6, 2.2 / 6, 0.275, 0.1375, 0.034375]
    ), "a budget expands less where it is small"
    assert repr(as_policy(16)) == "BestFirst(num_nodes=16, min_value=0.1375)"


def test_rows_without_enough_tokens_get_padding():
    source = TableSource([0, 1], TableLM(4, scale=0.0), num_candidates=2, is_sampling=False)
    batch = KAry((3, 1)).grow(source, 2)
    assert batch.num_nodes.tolist() == [5, 5]
    one_hot = TableSource([0], TableLM(4, scale=50.0), is_sparse=True)
    assert KAry((3,), WITHOUT_REPLACEMENT).grow(one_hot, 1).num_nodes.tolist() == [2]
    one_hot = TableSource([0], TableLM(4, scale=50.0), is_sparse=True)
    mixed = KAry((3,), MIXED).grow(one_hot, 1)
    assert mixed.num_nodes.tolist() == [2]
    assert mixed.sampling_schemes == {SELECTED}, "nothing is left to sample from"


def test_heap_grows_the_same_trees():
    """It knows `BestFirst`'s order alone."""
    assert can_use_heap(BestFirst(8))
    assert not can_use_heap(type("Own", (BestFirst,), {})(8))
    model = TableLM(5, scale=2.0)
    source = TableSource([2], model, is_sampling=False, num_candidates=4)

    def children_of(path):
        probs = source.probs(path)
        return [(float(probs[t]), int(t), (*path, int(t))) for t in probs.argsort(descending=True)[:4]]

    for num_nodes, depth in ((1, 3), (7, 2), (20, 6)):
        tree = grow_best_first(2, (2,), children_of, num_nodes, depth)
        heap = TokenTree(torch.tensor(tree.tokens), torch.tensor(tree.parents))
        source._paths = [[]]
        batch = BestFirst(num_nodes).grow(source, depth)
        ours = {token_path(batch.trees[0], node) for node in range(num_nodes)}
        assert {token_path(heap, node) for node in range(num_nodes)} == ours
        assert tree.values == sorted(tree.values, reverse=True)


def test_builder_keeps_expanded_numbers_apart():
    """Nodes may be expanded in any order and from several levels; `TableSource` rejects a wrong number."""
    source = TableSource([0, 1], TableLM(6))
    builder = TreeBuilder(source)
    first = builder.grow(builder.root, [3], SELECTED)
    second = builder.grow(first[:, 2:], [2], SELECTED)
    late = np.array([[second[0, 1], first[0, 0]], [-2, first[1, 1]]])
    builder.grow(late, [1, 2], SELECTED)
    batch = builder.build()
    assert batch.num_nodes.tolist() == [9, 8]
    for row in range(2):
        tree = checked(batch, row)
        for node in range(tree.num_nodes):
            expected = source.probs(token_path(tree, node)).argsort(descending=True).tolist()
            children = [tree.token(i) for i in tree.children(node)]
            assert children == expected[: len(children)]
