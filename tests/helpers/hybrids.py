"""Trees of a size for models with states."""

from __future__ import annotations

import torch
from helpers.zoo import VOCAB_SIZE

from treespec.lab.selftest.drafters import Planted
from treespec.tree import TokenTree


class SizedTrees(Planted):
    """Random trees of `num_nodes` nodes each, in which the true continuation is the path to a random node.

    `continuations`: see `Planted`.
    """

    def __init__(self, continuations: list[list[int]], num_nodes: int) -> None:
        super().__init__(continuations, VOCAB_SIZE)
        self._num_nodes = num_nodes

    def _tree(self, index: int, max_depth: int) -> TokenTree:
        history, choice = self._session.history, self._random
        truth = self._continuations[self._session.row_ids[index]][history.lengths[index] - self._start :]
        max_depth = min(max_depth, len(truth))
        parents, depths = [-1], [0]
        for _ in range(1, self._num_nodes):
            parents.append(choice.choice([node for node, depth in enumerate(depths) if depth < max_depth]))
            depths.append(depths[parents[-1]] + 1)
        node, path = choice.randrange(self._num_nodes), set()
        while node > 0:
            path.add(node)
            node = parents[node]
        tokens, taken = [int(history.row(index)[-1])], {(parents[node], truth[depths[node] - 1]) for node in path}
        for node in range(1, self._num_nodes):
            free = [token for token in range(VOCAB_SIZE) if (parents[node], token) not in taken]
            tokens.append(truth[depths[node] - 1] if node in path else choice.choice(free))
            taken.add((parents[node], tokens[-1]))
        return TokenTree(torch.tensor(tokens), torch.tensor(parents))
