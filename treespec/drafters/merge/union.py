"""The union of several drafters' trees: the votes for every node, its value, and which nodes are kept.

A node's value is the product along its path of P(node is right | its parent is).
"""

from collections.abc import Sequence

from treespec.drafters.merge.opinion_pool import OpinionPool, SiblingGroup, Vote
from treespec.policies.heap import HostTree


class UnionTree:
    """A trie of token paths below the root, node 0, and every drafter's votes for its nodes.

    Args:
        root: its token.
        trees: one tree of selected children per drafter; without values every node counts as certain.
    """

    def __init__(self, root: int, trees: Sequence[HostTree]) -> None:
        self.tokens, self.parents, self.depths = [root], [-1], [0]
        self.votes: list[dict[int, Vote]] = [dict.fromkeys(range(len(trees)), Vote(0, 1.0))]
        self._children: list[dict[int, int]] = [{}]
        for voter, tree in enumerate(trees):
            self._add(voter, tree)

    def values(self, pool: OpinionPool) -> list[float]:
        """The probability that a node's whole path is right, never rising along a path."""
        values = [1.0] * len(self.tokens)
        for node, children in enumerate(self._children):
            if children:
                for child, prob in zip(children.values(), pool.probs(self._group(node)), strict=True):
                    values[child] = values[node] * prob
        return values

    def learn(self, emitted: Sequence[int], pool: OpinionPool) -> None:
        """Let the pool learn from every node whose parent is on the emitted path, pruned nodes included."""
        node = 0
        for token in emitted:
            children = self._children[node]
            if children:
                pool.learn(self._group(node), list(children).index(token) if token in children else None)
            if token not in children:
                return
            node = children[token]

    def best_nodes(self, values: Sequence[float], num_nodes: int) -> list[int]:
        """The `num_nodes` most valuable nodes, parents before children."""
        # A stable sort: a parent of equal value has a lower number.
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

    def subtree(self, nodes: Sequence[int], values: Sequence[float]) -> HostTree:
        """The tree of `nodes`, parents first."""
        number = {node: index for index, node in enumerate(nodes)}
        return HostTree(
            tokens=[self.tokens[node] for node in nodes],
            parents=[-1, *(number[self.parents[node]] for node in nodes[1:])],
            values=[values[node] for node in nodes],
        )

    def _add(self, voter: int, tree: HostTree) -> None:
        """Siblings of the same token count as one."""
        at, ranks = [0], [0] * len(tree.tokens)
        for node in range(1, len(tree.tokens)):
            above = tree.parents[node]
            child = self._child(at[above], tree.tokens[node])
            confidence = tree.values[node] / tree.values[above] if tree.values and tree.values[above] > 0 else 1.0
            self.votes[child].setdefault(voter, Vote(ranks[above], min(confidence, 1.0)))
            ranks[above] += 1
            at.append(child)

    def _child(self, parent: int, token: int) -> int:
        if token not in self._children[parent]:
            self._children[parent][token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
            self.votes.append({})
            self._children.append({})
        return self._children[parent][token]

    def _group(self, node: int) -> SiblingGroup:
        """The node's children. A drafter without any of them has ended its draft there, which is not a vote."""
        votes = [self.votes[child] for child in self._children[node].values()]
        return SiblingGroup(votes, sorted({voter for vote in votes for voter in vote}), self.depths[node] + 1)
