"""Grown trees: one with every check, its shape and its texts; and all that a policy can grow, with their weights."""

from collections import defaultdict
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import torch
from helpers.toy_models import TableLM, TableSource

from treespec.literature import stochastic_beam
from treespec.policies import children
from treespec.testing import EnumeratingSource, ToyTree
from treespec.tree import TokenTree


def checked(batch, row):
    """The row as a tree that has passed all of `TokenTree`'s own checks."""
    tree = batch.trees[row]
    return TokenTree(
        tree.tokens, tree.parents, tree.draft_probs, tree.draft_index, tree.is_without_replacement, tree.is_width_fixed
    )


def rank_paths(tree):
    """The tree's shape as rank paths in node order: the inverse of `TokenTree.from_paths`."""
    paths = [()]
    for node in range(1, tree.num_nodes):
        parent = tree.parent_list[node]
        paths.append((*paths[parent], tree.children_lists[parent].index(node)))
    return paths[1:]


def token_path(tree, node):
    return tuple(tree.token(i) for i in tree.path_to(node))


class ScriptedDraws:
    """The draws of a batch, every row's from a source of its own; the r-th arrival of a race has speed 1 / r.

    How draws are really made: tests/test_sampling.py.
    """

    def __init__(self, scripts):
        self.rows, self.num_calls = [EnumeratingSource(script) for script in scripts], 0

    def race(self, probs, k, generator):
        return self._draw(probs, min(k, probs.shape[-1]), is_without_replacement=True)

    def draw_independent(self, probs, k, generator):
        return self._draw(probs, k, is_without_replacement=False)[0]

    def _draw(self, probs, k, is_without_replacement):
        self.num_calls += 1
        tokens = torch.zeros(*probs.shape[:-1], k, dtype=torch.int64)
        speeds = torch.zeros(tokens.shape, dtype=torch.float64)
        for row, node in np.ndindex(*probs.shape[:2]):
            rest = probs[row, node].double().numpy().copy()
            for rank in range(k if rest.sum() > 0 else 0):
                # One outcome leaves nothing to choose: so has padding, whose amount depends on the batch's other rows.
                key, is_open = (self.num_calls, node, rank), np.count_nonzero(rest) > 1
                token = self.rows[row].pick(key, rest) if is_open else int(rest.argmax())
                tokens[row, node, rank], speeds[row, node, rank] = token, 1 / (rank + 1)
                rest[token] *= not is_without_replacement
                if not rest.any():
                    break
        return tokens, speeds

    def next_scripts(self, scripts):
        """Scripts for every branch that was not taken beyond the given scripts."""
        for rng, script in zip(self.rows, scripts, strict=True):
            for i in range(len(script), len(rng.taken)):
                yield from ((*rng.taken[:i], choice) for choice in range(1, rng.num_options[i]))


def all_trees(policy, draft: TableLM, max_depth, root=0):
    """Every tree that a policy grows below the root, float64 distributions: lists of weights, which add up to one, and
    of trees."""
    found, trees, scripts = defaultdict(float), {}, [()]
    while scripts:
        draws = ScriptedDraws(scripts)
        with ExitStack() as stack:
            for module, name in ((children, "race"), (children, "draw_independent"), (stochastic_beam, "race")):
                stack.enter_context(patch.object(module, name, getattr(draws, name)))
            batch = policy.grow(TableSource([root] * len(scripts), draft, dtype=torch.float64), max_depth)
        for rng, tree in zip(draws.rows, batch.trees, strict=True):
            toy = as_toy(tree)
            key = str((toy.contexts, toy.parents, toy.draft_probs))
            found[key], trees[key] = found[key] + rng.weight, toy
        scripts = list(draws.next_scripts(scripts))
    return list(found.values()), list(trees.values())


def as_toy(tree):
    toy = ToyTree(is_width_fixed=tree.is_width_fixed)
    for node in range(1, tree.num_nodes):
        probs = tree.draft_probs_of(node)
        probs = None if probs is None else probs.double().numpy()
        toy.add(tree.parent_list[node], tree.token(node), probs, probs)
    return toy
