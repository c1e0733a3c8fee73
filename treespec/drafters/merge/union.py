"""The union of several drafters' trees: who offers which node, what it is worth, and which nodes are kept.

A node's value is the product, along its path, of every node's probability of being right *given that its parent was*.
"""

from __future__ import annotations

from collections.abc import Sequence

from treespec.drafters.merge.calibration import Offer
from treespec.drafters.merge.opinion_pool import Family, OpinionPool
from treespec.policies.heap import HostTree


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
        for source, tree in enumerate(sources):
            self._add(source, tree)

    def values(self, pool: OpinionPool) -> list[float]:
        """The chance that a node's whole path is right, never rising along a path."""
        values = [1.0] * len(self.tokens)
        for node, children in enumerate(self._children):
            if children:
                for child, prob in zip(children.values(), pool.probs(self._family(node)), strict=True):
                    values[child] = values[node] * prob
        return values

    def judge(self, emitted: Sequence[int], pool: OpinionPool) -> None:
        """Tell the pool what came of every node whose parent lies on the emitted path, of the pruned ones too."""
        node = 0
        for token in emitted:
            children = self._children[node]
            if not children:
                return
            pool.learn(self._family(node), list(children).index(token) if token in children else None)
            if token not in children:
                return
            node = children[token]

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

    def _family(self, node: int) -> Family:
        """Sources that offer no child end there, which says nothing of what comes."""
        offers = [self.offers[child] for child in self._children[node].values()]
        return Family(offers, sorted({source for offer in offers for source in offer}), self.depths[node] + 1)
