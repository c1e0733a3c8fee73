"""Published policies against plain readings of their papers, over toy distributions that depend on the whole path."""

import pytest
from helpers.drafter_loop import Loop
from helpers.grown_trees import checked, token_path
from helpers.toy_models import TableLM, TableSource, ToyScorer
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.drafters import DraftModel
from treespec.errors import ConfigError
from treespec.literature import SpecExec, delayed_branching, dyspec, eagle2, opt_tree
from treespec.policies import KAry
from treespec.tree import SELECTED, WITHOUT_REPLACEMENT


def children_of(source, path, k=None):
    """(path, probability) of the most probable children."""
    probs = source.probs(path)
    return [
        ((*path, int(token)), float(probs[token])) for token in probs.argsort(descending=True)[:k] if probs[token] > 0
    ]


def best(values, count):
    return sorted(values, key=lambda path: -values[path])[:count]


def read_eagle2(source, root, num_nodes, beam, depth):
    """Expansion phase, then reranking phase (section 4)."""
    value = {(root,): 1.0}
    frontier = [(root,)]
    for _ in range(depth):
        level = {}
        for path in frontier:
            level |= {child: value[path] * prob for child, prob in children_of(source, path, beam)}
        value |= level
        frontier = best(level, beam)
    del value[(root,)]
    return set(best(value, num_nodes - 1))


def read_opt_tree(source, root, num_nodes, min_gain, depth):
    """Layer by layer; stops when the expected acceptance grows by no more than the threshold (algorithm 1)."""
    value, total = {}, 0.0
    frontier = {(root,): 1.0}
    for _ in range(depth):
        level = {child: w * prob for path, w in frontier.items() for child, prob in children_of(source, path)}
        frontier = {path: level[path] for path in best(level, num_nodes - 1)}
        value |= frontier
        before, total = total, sum(value[path] for path in best(value, num_nodes - 1))
        if total - before <= min_gain:
            break
    return set(best(value, num_nodes - 1))


def read_specexec(source, root, num_nodes, beam, num_passes, max_depth):
    """Parallel shortest-path search: settle the best unsettled nodes, then add their children to the candidates."""
    value, settled, batch = {(root,): 1.0}, set(), [(root,)]
    for _ in range(num_passes):
        for path in batch:
            settled.add(path)
            value |= {child: value[path] * prob for child, prob in children_of(source, path)}
        top = best(value, num_nodes)
        batch = [path for path in top if path not in settled and len(path) <= max_depth][:beam]
    return set(best(value, num_nodes)) - {(root,)}


def grown(policy, seed, max_depth, vocab_size, scale=2.0, is_sparse=False):
    """The token paths of three rows' trees, and their source."""
    roots = [row % vocab_size for row in range(3)]
    source = TableSource(roots, TableLM(vocab_size, seed, scale), is_sampling=False, is_sparse=is_sparse)
    batch = policy.grow(source, max_depth)
    assert bool(batch.is_valid)
    assert batch.draft_probs is None
    assert batch.max_nodes <= policy.max_nodes
    assert batch.is_width_fixed
    trees = [checked(batch, row) for row in range(3)]
    return source, [{token_path(tree, node) for node in range(1, tree.num_nodes)} for tree in trees]


sizes = {
    "num_nodes": st.integers(1, 25),
    "beam": st.integers(1, 5),
    "depth": st.integers(1, 5),
    "max_depth": st.integers(1, 5),
    "seed": st.integers(0, 200),
    "vocab_size": st.integers(1, 6),
    "is_sparse": st.booleans(),
}


@given(**sizes)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_eagle2_expands_and_reranks(num_nodes, beam, depth, max_depth, seed, vocab_size, is_sparse):
    policy = eagle2(num_nodes, beam, depth)
    source, rows = grown(policy, seed, max_depth, vocab_size, is_sparse=is_sparse)
    for row, paths in enumerate(rows):
        assert paths == read_eagle2(source, row % vocab_size, num_nodes, beam, min(depth, max_depth))
    assert len(source.widths) <= min(depth, max_depth)


@given(min_gain=st.sampled_from([0.0, 0.05, 0.2, 0.6]), **{key: sizes[key] for key in sizes if key != "beam"})
@settings(max_examples=80, deadline=None, derandomize=True)
def test_opt_tree_stops_where_it_gains_too_little(num_nodes, min_gain, depth, max_depth, seed, vocab_size, is_sparse):
    source, rows = grown(opt_tree(num_nodes, min_gain, depth), seed, max_depth, vocab_size, is_sparse=is_sparse)
    for row, paths in enumerate(rows):
        assert paths == read_opt_tree(source, row % vocab_size, num_nodes, min_gain, min(depth, max_depth))
    without = grown(opt_tree(num_nodes, 0.0, depth), seed, max_depth, vocab_size, is_sparse=is_sparse)[0]
    assert len(source.widths) <= len(without.widths), "a gain asked for saves draft passes"


@given(**sizes)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_specexec_settles_the_best_nodes_first(num_nodes, beam, depth, max_depth, seed, vocab_size, is_sparse):
    """`depth` is the number of passes here."""
    source, rows = grown(SpecExec(num_nodes, beam, depth), seed, max_depth, vocab_size, is_sparse=is_sparse)
    for row, paths in enumerate(rows):
        assert paths == read_specexec(source, row % vocab_size, num_nodes, beam, depth, max_depth)
    assert len(source.widths) <= depth
    assert max(source.widths, default=0) <= beam


def test_delayed_branching_has_a_trunk():
    for children in (SELECTED, WITHOUT_REPLACEMENT):
        policy = delayed_branching(2, (3, 1), children)
        ours = policy.grow(TableSource([1, 2], TableLM(5)), 9)
        full = KAry((1, 1, 3, 1), children).grow(TableSource([1, 2], TableLM(5)), 9)
        assert ours.tokens.equal(full.tokens)
        assert [len(tree.leaf_paths()) for tree in ours.trees] == [3, 3]
        assert policy.max_nodes == 9


def test_specexec_never_computes_a_node_twice():
    """Passes over nodes of several depths, through a draft model whose toy cache rejects what is wrong."""
    model = TableLM(6, seed=3)
    scorer = ToyScorer(model)
    loop = Loop(DraftModel(scorer), [[1, 2, 3], [4, 0]], SpecExec(14, beam=3, num_passes=6), is_sampling=False)
    for _ in range(8):
        loop.step(loop.propose())
    assert max(scorer.scored.values()) == 1


def test_dyspec_is_sampled():
    batch = dyspec(6).grow(TableSource([0] * 50, TableLM(4)), 4)
    assert WITHOUT_REPLACEMENT in batch.sampling_schemes
    assert not batch.is_width_fixed
    with pytest.raises(ConfigError, match="must be selected"):
        dyspec(6).grow(TableSource([0], TableLM(4), num_candidates=2), 4)
