"""The union of several drafters' trees: who offers which node, what it is worth, and which nodes are kept.

A node's value is the product, along its path, of every node's probability of being right *given that its parent was*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treespec.drafters.calibration import Calibration, Cells
from treespec.policies.heap import HostTree

NUM_BINS = 4
"""Promised probabilities are told apart by quarters."""
MAX_DEPTH, MAX_RANK, MAX_JOINT_RANK = 6, 6, 3
"""Deeper nodes and later siblings share the last cell."""
WITHHELD, ABSENT = -1, -2
"""In place of a rank: the source holds the node's parent without offering the node, or does not hold the parent."""


class Offer(NamedTuple):
    """A source's promise of one node: its rank among the source's siblings and P(node is right | its parent is)."""

    rank: int
    promise: float


class UnionTree:
    """A trie of token paths below the root, and per node what every source that holds it promises. Node 0 is the root.

    Args:
        root: its token.
        sources: one tree of selected children per source; without values every node counts as certain.
    """

    def __init__(self, root: int, sources: Sequence[HostTree]) -> None:
        self.tokens, self.parents, self.depths = [root], [-1], [0]
        self.offers: list[dict[int, Offer]] = [dict.fromkeys(range(len(sources)), Offer(0, 1.0))]
        self._children: list[dict[int, int]] = [{}]
        self._num_sources = len(sources)
        for source, tree in enumerate(sources):
            self._add(source, tree)

    def values(self, calibration: Calibration) -> list[float]:
        """The chance that a node's whole path is right, never rising along a path.

        Given the parent, a node is right if one of its sources is: 1 - prod (1 - calibrated promise), as if they erred
        independently. As they do not, that is calibrated once more by who offers the node at which rank and who does
        not.
        """
        values = [1.0]
        for node in range(1, len(self.tokens)):
            prob = self._prob_of_sources(node, calibration)
            values.append(values[self.parents[node]] * calibration.estimate(prob, self._joint_cells(node, prob)))
        return values

    def judge(self, emitted: Sequence[int], calibration: Calibration) -> None:
        """Record what came of every node whose parent lies on the emitted path, of the pruned ones too."""
        node = 0
        for token in emitted:
            for candidate, child in self._children[node].items():
                is_hit = candidate == token
                joint = self._joint_cells(child, self._prob_of_sources(child, calibration))
                calibration.record(is_hit, joint)
                for source, offer in self.offers[child].items():
                    calibration.record(is_hit, source_cells(source, self.depths[child], offer))
            if token not in self._children[node]:
                return
            node = self._children[node][token]

    def best_nodes(self, values: Sequence[float], num_nodes: int) -> list[int]:
        """The `num_nodes` most valuable nodes, the root first; of equal ones the first, so parents before children."""
        return sorted(range(len(values)), key=lambda node: -values[node])[:num_nodes]

    def best_chain(self, values: Sequence[float], num_nodes: int) -> list[int]:
        """The path of at most `num_nodes` nodes with the greatest sum of values."""
        sums = [value if depth < num_nodes else 0.0 for value, depth in zip(values, self.depths, strict=True)]
        best: dict[int, int] = {}
        for node in range(len(sums) - 1, -1, -1):
            if children := self._children[node].values():
                best[node] = max(children, key=sums.__getitem__)
                sums[node] += sums[best[node]]
        path = [0]
        while path[-1] in best and len(path) < num_nodes:
            path.append(best[path[-1]])
        return path

    def take(self, nodes: Sequence[int], values: Sequence[float]) -> HostTree:
        """The tree of `nodes`, parents first."""
        number = {node: place for place, node in enumerate(nodes)}
        return HostTree(
            tokens=[self.tokens[node] for node in nodes],
            parents=[-1, *(number[self.parents[node]] for node in nodes[1:])],
            values=[values[node] for node in nodes],
        )

    def _add(self, source: int, tree: HostTree) -> None:
        """Siblings of the same token count as one."""
        at, ranks = [0], [0] * len(tree.tokens)
        for node in range(1, len(tree.tokens)):
            above = tree.parents[node]
            child = self._child(at[above], tree.tokens[node])
            promise = tree.values[node] / tree.values[above] if tree.values and tree.values[above] > 0 else 1.0
            self.offers[child].setdefault(source, Offer(ranks[above], min(promise, 1.0)))
            ranks[above] += 1
            at.append(child)

    def _child(self, parent: int, token: int) -> int:
        if token not in self._children[parent]:
            self._children[parent][token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            self.offers.append({})
            self._children.append({})
        return self._children[parent][token]

    def _prob_of_sources(self, node: int, calibration: Calibration) -> float:
        """P(node is right | its parent is), were its sources independent."""
        missed = 1.0
        for source, offer in self.offers[node].items():
            missed *= 1.0 - calibration.estimate(offer.promise, source_cells(source, self.depths[node], offer))
        return 1.0 - missed

    def _joint_cells(self, node: int, prob: float) -> Cells:
        offers, above = self.offers[node], self.offers[self.parents[node]]
        ranks = [
            min(offers[source].rank, MAX_JOINT_RANK) if source in offers else WITHHELD if source in above else ABSENT
            for source in range(self._num_sources)
        ]
        return [("joint", *ranks, bin_of(prob))]


def source_cells(source: int, depth: int, offer: Offer) -> Cells:
    """A promise's cells: its source, rank and size; then its depth too."""
    coarse = (source, min(offer.rank, MAX_RANK), bin_of(offer.promise))
    return (coarse, (*coarse, min(depth, MAX_DEPTH)))


def bin_of(prob: float) -> int:
    """The quarter that a probability lies in, 0 to 3."""
    return min(int(prob * NUM_BINS), NUM_BINS - 1)
