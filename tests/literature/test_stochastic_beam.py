"""Stochastic beam search: its levels are draws of whole paths without replacement."""

from collections import Counter
from itertools import permutations, product

import pytest
import torch
from helpers.grown_trees import token_path
from helpers.toy_models import TableLM, TableSource
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.literature import StochasticBeam
from treespec.testing import g_test
from treespec.tree import IID, SELECTED


@given(*(st.integers(1, most) for most in (5, 4, 4, 6)), st.integers(0, 99), st.booleans(), st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_level_has_as_many_nodes_as_there_are_paths(
    width, depth, max_depth, vocab_size, seed, is_sparse, is_sampling
):
    """Properties of every tree: tests/policies/test_growing.py."""
    roots = [0, vocab_size - 1]
    source = TableSource(roots, TableLM(vocab_size, seed), is_sampling, None, is_sparse, seed, torch.float64)
    batch = StochasticBeam(width, depth).grow(source, max_depth)
    assert batch.is_width_fixed != is_sampling
    for tree in batch.trees:
        levels = Counter(tree.depths)
        assert max(levels) <= min(depth, max_depth)
        for level in range(1, max(levels) + 1):
            frontier = [node for node in range(tree.num_nodes) if tree.depths[node] == level - 1]
            num_paths = sum(int((source.probs(token_path(tree, node)) > 0).sum()) for node in frontier)
            assert levels[level] == min(width, num_paths)


def path_probs(source, root, depth):
    """Every token path of this depth with its probability."""
    probs = {}
    for path in product(range(source._model.vocab_size), repeat=depth):
        probs[path] = 1.0
        for i, token in enumerate(path):
            probs[path] *= float(source.probs((root, *path[:i]))[token])
    return probs


def draws_of(probs, k):
    """The distribution of k draws without replacement, by enumeration: ordered tuples to probabilities."""
    distribution = {}
    for drawn in permutations(probs, k):
        left, distribution[drawn] = 1.0, 1.0
        for path in drawn:
            distribution[drawn] *= probs[path] / left
            left -= probs[path]
    return distribution


@pytest.mark.parametrize(("depth", "width"), [(2, 1), (2, 3), (3, 2)])
def test_a_level_holds_paths_drawn_without_replacement(depth, width):
    """Kool et al. 2019, section 4: in the order of arrival."""
    num_rows = 2_000
    source = TableSource([1] * num_rows, TableLM(3, seed=5, scale=1.2), dtype=torch.float64)
    batch = StochasticBeam(width, depth).grow(source, depth)
    counts = Counter(
        tuple(token_path(tree, node)[1:] for node in range(tree.num_nodes) if tree.depths[node] == depth)
        for tree in batch.trees
    )
    probs = draws_of(path_probs(source, 1, depth), width)
    assert sum(probs.values()) == pytest.approx(1)
    assert g_test(counts, probs) > 1e-3


def test_without_sampling_it_is_beam_search():
    source = TableSource([0, 1, 2], TableLM(5, scale=1.0), is_sampling=False)
    for tree in StochasticBeam(3, 3).grow(source, 9).trees:
        root, beam, expected = tree.token(0), [()], set()
        for depth in range(1, 4):
            probs = path_probs(source, root, depth)
            reached = [path for path in probs if path[:-1] in beam]
            beam = sorted(reached, key=lambda path: -probs[path])[:3]
            expected |= set(beam)
        assert {token_path(tree, node)[1:] for node in range(1, tree.num_nodes)} == expected
    assert StochasticBeam(2, 2, SELECTED).grow(TableSource([0], TableLM(4)), 9).sampling_schemes == {SELECTED}
    candidates = TableSource([0], TableLM(4), num_candidates=3)
    assert StochasticBeam(2, 2).grow(candidates, 9).sampling_schemes == {SELECTED}
    chain = StochasticBeam(1, 2).grow(TableSource([0, 1], TableLM(3, seed=1)), 9)
    assert (chain.is_chain, chain.sampling_schemes) == (True, {IID})
