"""Toy drafters and shapes of trees against independent counts."""

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch

from treespec.testing import (
    IID,
    MIXED,
    SELECTED,
    SEVERAL_DRAFTERS,
    SHAPES,
    TOY_SCHEMES,
    WITHOUT_REPLACEMENT,
    AdaptiveDepth,
    AdaptiveWidth,
    FixedShape,
    RandomDistributions,
    ToyDrafter,
    distribution_pairs,
    enumerate_traces,
)
from treespec.tree import TreeBatch

EXACT = RandomDistributions(3, seed=1, is_exact=True)


def test_distributions_are_reproducible_and_alike_in_both_arithmetics() -> None:
    exact, floats = (RandomDistributions(4, seed=5, is_exact=is_exact, zero_share=0.5) for is_exact in (True, False))
    contexts = [(), (0,), (1, 2), (2, 1)]
    for context in contexts:
        assert exact(context).sum() == 1
        assert [float(prob) for prob in exact(context)] == floats(context).tolist()
        assert (RandomDistributions(4, seed=5, zero_share=0.5)(context) == floats(context)).all()
        with pytest.raises(ValueError, match="read-only"):
            floats(context)[0] = 1
    assert len({tuple(floats(context)) for context in contexts}) == len(contexts)


def test_two_children_have_the_distribution_of_their_scheme() -> None:
    probs, other = EXACT(()), RandomDistributions(3, seed=2, is_exact=True)
    best, tokens = int(np.argmax(probs)), range(3)
    expected = {
        IID: {(a, b): probs[a] * probs[b] for a in tokens for b in tokens},
        WITHOUT_REPLACEMENT: {
            (a, b): probs[a] * probs[b] / (1 - probs[a]) for a, b in itertools.permutations(tokens, 2)
        },
        MIXED: {(a, best): probs[a] / (1 - probs[best]) for a in tokens if a != best},
        SEVERAL_DRAFTERS: {(a, b): probs[a] * other(())[b] for a in tokens for b in tokens},
    }
    for scheme, pairs in expected.items():
        counted: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for weight, tree in enumerate_traces(ToyDrafter(scheme, FixedShape.kary(2), (EXACT, other))):
            counted[tuple(tree.tokens[1:])] += weight
        assert counted == pairs


def test_shapes() -> None:
    for branching, num_nodes in (((1, 1, 1), 4), ((2, 2), 7), ((3, 1, 1), 10)):
        ((_, tree),) = enumerate_traces(ToyDrafter(SELECTED, FixedShape.kary(*branching), (EXACT,)))
        assert tree.num_nodes == num_nodes
    for shape, is_fixed in ((AdaptiveDepth(), True), (AdaptiveWidth(), False)):
        trees = [tree for _, tree in enumerate_traces(ToyDrafter(IID, shape, (EXACT,)))]
        assert len({tuple(tree.parents) for tree in trees}) > 2
        assert {tree.is_width_fixed for tree in trees} == {is_fixed}
        widths = {len(group) for tree in trees for group in tree.child_lists if group}
        assert widths == ({2} if is_fixed else {1, 2})


@pytest.mark.parametrize("shape", ["chain", "adaptive width"])
@pytest.mark.parametrize("scheme", TOY_SCHEMES)
def test_the_stored_tree_gives_the_distributions_that_were_drawn_from(scheme: str, shape: str) -> None:
    """`TokenTree` rebuilds every child's distribution from its compact table."""
    _, drafts = distribution_pairs(3, False)["zeros"]
    seen = set()
    for _, toy in enumerate_traces(ToyDrafter(scheme, SHAPES[shape], drafts)):
        tree = toy.to_token_tree()
        assert bool(TreeBatch.from_trees([tree]).is_valid)
        seen |= tree.sampling_schemes
        for node in range(1, toy.num_nodes):
            probs, stored = toy.draft_probs_of(node), tree.draft_probs_of(node)
            assert (probs is None) == (stored is None)
            if probs is not None and stored is not None:
                torch.testing.assert_close(stored, torch.from_numpy(probs.copy()), rtol=0, atol=1e-15)
    expected = {SEVERAL_DRAFTERS: MIXED}.get(scheme, scheme)
    assert seen >= ({IID} if shape == "chain" and scheme != SELECTED else {expected})
