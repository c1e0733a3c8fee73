"""Verifying grown trees: every check of a single tree, their counts, and what they decode to."""

from collections import Counter

import pytest
import torch

from treespec.tree import TokenTree
from treespec.verification import verify

rules_of_sampled_trees = pytest.mark.parametrize(
    "rule", ["traversal", pytest.param("recursive", marks=pytest.mark.slow)]
)
"""Both read every draft distribution of a tree, and either sees a wrong one."""


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


def drawn_tree(tree):
    children = {token_path(tree, n): tuple(map(tree.token, tree.children(n))) for n in range(tree.num_nodes)}
    return frozenset((path, tokens) for path, tokens in children.items() if tokens)


def emitted_probs(batch, target, rule):
    """Counts of the first two tokens after verification, extended by the target where only one was emitted."""
    generator = torch.Generator().manual_seed(11)
    num_rows, num_nodes = batch.tokens.shape
    nothing, rows = torch.zeros(target._model.vocab_size, dtype=torch.float64), []
    for tree in batch.trees:
        rows += [target.probs(token_path(tree, node)).double() for node in range(tree.num_nodes)]
        rows += [nothing] * (num_nodes - tree.num_nodes)
    probs = torch.stack(rows).view(num_rows, num_nodes, -1)
    coins, draws = torch.rand(2, num_rows, num_nodes, dtype=torch.float64, generator=generator)
    counts = Counter()
    for tree, verdict in zip(batch.trees, verify(batch, probs, rule, coins=coins, draws=draws), strict=True):
        text = [*token_path(tree, verdict.path[-1]), verdict.next_token]
        while len(text) < 3:
            text.append(int(target.probs(tuple(text)).multinomial(1, generator=generator)))
        counts[tuple(text[1:3])] += 1
    return counts


def pair_probs(target, root):
    probs = {first: target.probs((root, first)) for first in range(target._model.vocab_size)}
    return {(a, b): float(target.probs((root,))[a] * probs[a][b]) for a in probs for b in probs}
