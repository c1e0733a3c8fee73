"""The optimum of a tree: against linear programmes over whole trees and enumerated draws."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from treespec.errors import ConfigError
from treespec.literature.optimum import path_bound, shape_inclusion, tree_bound
from treespec.testing import FixedShape, RandomDistributions, ToyDrafter, enumerate_traces
from treespec.tree import IID, WITHOUT_REPLACEMENT, parents_of_paths

SHAPES = ["[(0,), (1,), (0, 0), (0, 1), (1, 0)]", "[(0,), (1,), (0, 0), (0, 1)]"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scheme", [IID, WITHOUT_REPLACEMENT])
def test_inclusion_is_what_enumerated_drafts_hold(scheme, shape):
    draft = RandomDistributions(3, seed=3, zero_share=0.2)
    drafter = ToyDrafter(scheme, FixedShape.from_paths(shape), (draft,))
    held: dict[tuple[int, ...], float] = defaultdict(float)
    for weight, tree in enumerate_traces(drafter):
        for context in set(tree.contexts[1:]):
            held[context] += weight
    inclusion = shape_inclusion(
        parents_of_paths(FixedShape.from_paths(shape).paths), draft, scheme == WITHOUT_REPLACEMENT
    )
    for length in (1, 2):
        for path in itertools.product(range(3), repeat=length):
            assert inclusion(path) == pytest.approx(held[path], abs=1e-12)


def whole_tree_optimum(drafter: ToyDrafter, target: RandomDistributions) -> float:
    """E[accepted] of the best lossless rule: mass a(T, s) accepts through s, `a(sx) <= P(x|s) a(s)` summed over T."""
    sets: dict[frozenset[tuple[int, ...]], float] = defaultdict(float)
    for weight, tree in enumerate_traces(drafter):
        sets[frozenset(tree.contexts)] += weight
    number = {(t, s): i for i, (t, s) in enumerate((t, s) for t, nodes in enumerate(sets) for s in nodes)}
    paths = sorted({s for nodes in sets for s in nodes if s})
    rows, limits = np.zeros((0, len(number))), []
    for t, nodes in enumerate(sets):
        for s in nodes:
            row = np.zeros(len(number))
            row[number[t, s]] = -1
            for child in nodes:
                if child and child[:-1] == s:
                    row[number[t, child]] = 1
            rows, limits = np.vstack([rows, row]), [*limits, 0.0]
    for path in paths:
        row = np.zeros(len(number))
        for t in range(len(sets)):
            if (t, path) in number:
                row[number[t, path]] = 1
            if (t, path[:-1]) in number:
                row[number[t, path[:-1]]] -= target(path[:-1])[path[-1]]
        rows, limits = np.vstack([rows, row]), [*limits, 0.0]
    roots = np.zeros((len(sets), len(number)))
    for t in range(len(sets)):
        roots[t, number[t, ()]] = 1
    value = np.array([0.0 if s == () else -1.0 for _, s in number])
    return -linprog(value, A_ub=rows, b_ub=limits, A_eq=roots, b_eq=list(sets.values()), method="highs").fun


@pytest.mark.parametrize(("seed", "scheme"), [(0, IID), (1, WITHOUT_REPLACEMENT)])
def test_tree_bound_is_never_below_the_whole_tree_programme(seed, scheme):
    shape = FixedShape.from_paths(SHAPES[0])
    draft, target = RandomDistributions(2, seed=seed), RandomDistributions(2, seed=seed + 50)
    optimum = whole_tree_optimum(ToyDrafter(scheme, shape, (draft,)), target)
    parents = parents_of_paths(shape.paths)
    bound = tree_bound(target, shape_inclusion(parents, draft, scheme == WITHOUT_REPLACEMENT), max_depth=2)
    assert optimum <= bound + 1e-9
    assert bound <= 1.3 * optimum


def test_tree_bound_is_attained_on_chains_and_by_one_node():
    draft, target = RandomDistributions(3, seed=1), RandomDistributions(3, seed=2)
    chain = FixedShape.kary(1, 1)
    bound = tree_bound(target, shape_inclusion([-1, 0, 1], draft), max_depth=2)
    assert bound == pytest.approx(whole_tree_optimum(ToyDrafter(IID, chain, (draft,)), target), abs=1e-8)
    selected = {(0,): 1.0, (1,): 1.0, (0, 2): 1.0}
    bound = tree_bound(target, lambda path: selected.get(path, 0.0), max_depth=2)
    assert bound == pytest.approx(target(())[0] + target(())[1] + target(())[0] * target((0,))[2])


def test_a_shape_that_is_not_a_tree_is_refused():
    for parents in ([], [0], [-1, -1], [-1, 1], [-1, 0, 2]):
        with pytest.raises(ConfigError, match="parents must begin with -1"):
            shape_inclusion(parents, RandomDistributions(3, seed=1))


def test_path_bound_has_the_tree_bound_as_its_mean():
    draft, target = RandomDistributions(3, seed=4), RandomDistributions(3, seed=5)
    parents = parents_of_paths(FixedShape.kary(2, 2).paths)
    inclusion = shape_inclusion(parents, draft)
    mean = 0.0
    for first, second in itertools.product(range(3), repeat=2):
        probs = torch.tensor([target(())[first], target(())[first] * target((first,))[second]])
        held = torch.tensor([inclusion((first,)), inclusion((first, second))], dtype=torch.float64)
        mean += float(probs[-1] * path_bound(probs, held))
    assert mean == pytest.approx(tree_bound(target, inclusion, max_depth=2), abs=1e-12)
