"""Which residuals of a batch are computed together: the plan of `scans.py`, in NumPy on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from treespec.tree import POINT_MASS, TokenTree, TreeBatch


class Plan(NamedTuple):
    """The M children of a batch of R = B * N nodes, wave by wave: each wave waits for the one before it alone.

    A child's wave is its parent's plus its rank; a first child passes its parent's wave on to its own children, for the
    mass that it is entered with needs no residual. So a chain is one wave.
    """

    ends: list[int]
    """Where the waves end among the children, from 0."""
    numbers: Int[np.ndarray, "R"]
    """The number among the M children, by node; -1 for roots and padding."""
    nodes: Int[np.ndarray, "M"]
    """These two by `row * N + node`."""
    parents: Int[np.ndarray, "M"]
    tokens: Int[np.ndarray, "M"]
    draft_rows: Int[np.ndarray, "M"]
    sources: Int[np.ndarray, "M"]
    """The row that the child is verified against: of the R distributions, else R + the number of the sibling before."""
    before: Int[np.ndarray, "M"]
    """In later waves: the child whose residual comes before, an earlier sibling of the child or of its line's head."""
    heads: Int[np.ndarray, "M"]
    """In later waves, for first children: the head of the parent's line; M for others."""
    lines: Int[np.ndarray, "M L"]
    """For first children: M, then the first children from the parent up to its line's head; filled up with M."""
    taken: Int[np.ndarray, "2 T"]
    """Children, and tokens of earlier siblings that they were drawn without."""

    @property
    def is_first(self) -> Bool[np.ndarray, "M"]:
        return self.sources < len(self.numbers)

    @property
    def first_before(self) -> Int[np.ndarray, "M"]:
        """The first sibling of `before`, in later waves."""
        first_of = np.zeros(len(self.numbers), np.int64)
        first_of[self.parents[self.is_first]] = np.flatnonzero(self.is_first)
        return first_of[self.parents[self.before]]

    @property
    def finals(self) -> Int[np.ndarray, "R"]:
        """By node: what the token after it is most often drawn from, by the numbers of `sources`: what its last child
        leaves, or its own distribution."""
        finals = np.arange(len(self.numbers))
        finals[self.parents] = len(self.numbers) + np.arange(len(self.nodes))  # The last sibling's assignment stays.
        return finals


def make_plan(trees: TreeBatch, has_masses: bool) -> Plan:
    """The children of all trees in waves; `has_masses`: a node's mass depends on its parent's residuals."""
    found: list[tuple[int, ...]] = []
    chains: dict[int, tuple[int, ...]] = {}
    for row, tree in enumerate(trees.trees):
        first = row * trees.max_nodes
        found += _children(tree, first, has_masses, chains)
    num_nodes = trees.tokens.numel()
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 7).T.copy()  # A wave is a slice then.
    waves, nodes, parents, tokens, draft_rows, siblings, heads = columns
    numbers = np.full(num_nodes + 1, -1)  # The last one is for -1, no such node.
    numbers[nodes] = np.arange(len(nodes))
    sibling_of = np.append(siblings, -1)  # The last one is for M, no head.
    is_first = siblings < 0
    is_headed = is_first & (heads >= 0)
    head_numbers = np.where(is_headed, numbers[heads], len(nodes))
    before = numbers[np.where(is_headed, sibling_of[head_numbers], siblings)]
    return Plan(
        ends=[0, *np.cumsum(np.bincount(waves)).tolist()],
        numbers=numbers[:-1],
        nodes=nodes,
        parents=parents,
        tokens=tokens,
        draft_rows=draft_rows,
        sources=np.where(is_first, parents, num_nodes + numbers[siblings]),
        before=before,
        heads=head_numbers,
        lines=_lines(parents, is_first, numbers, chains),
        taken=_taken(trees, numbers),
    )


def _children(
    tree: TokenTree, first: int, has_masses: bool, chains: dict[int, tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Wave, node, parent, token, row of the draft's table, the sibling before, the head of the parent's line.

    -1 stands for no such node. `chains` gets the nodes from every node up to its line's head, which is left out.
    """
    found, starts, heads = [], [0] * tree.num_nodes, [-1] * tree.num_nodes
    for parent, children in enumerate(tree.children_lists):
        for rank, child in enumerate(children):
            wave = starts[parent] + rank
            sibling = first + children[rank - 1] if rank else -1
            draft_row = tree.draft_index_list[child]
            found.append((wave, first + child, first + parent, tree.token(child), draft_row, sibling, heads[parent]))
            if has_masses:
                starts[child] = wave
                heads[child] = first + child if rank else heads[parent]
                chains[first + child] = () if rank else (first + child, *chains.get(first + parent, ()))
    return found


def _lines(
    parents: Int[np.ndarray, "M"],
    is_first: Bool[np.ndarray, "M"],
    numbers: Int[np.ndarray, "_"],
    chains: dict[int, tuple[int, ...]],
) -> Int[np.ndarray, "M L"]:
    lines = [chains.get(node, ()) if first else () for node, first in zip(parents.tolist(), is_first, strict=True)]
    table = np.full((len(lines), 1 + max(map(len, lines), default=0)), len(lines))
    for row, line in zip(table, lines, strict=True):
        row[1 : 1 + len(line)] = numbers[list(line)]
    return table


def _taken(trees: TreeBatch, numbers: Int[np.ndarray, "_"]) -> Int[np.ndarray, "2 T"]:
    pairs: list[tuple[int, int]] = []
    for row, tree in enumerate(trees.trees):
        first, rows = row * trees.max_nodes, tree.draft_index_list
        for children in tree.children_lists:
            for rank, child in enumerate(children):
                if rows[child] != POINT_MASS and tree.is_without_replacement_list[child]:
                    earlier = (c for c in children[:rank] if rows[c] == rows[child])
                    pairs += [(int(numbers[first + child]), tree.token(c)) for c in earlier]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
