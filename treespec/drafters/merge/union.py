"""The union of several drafters' trees, with their votes."""

from collections.abc import Iterator, Sequence

from treespec.drafters.merge.opinion_pool import OpinionPool, SiblingGroup, Vote
from treespec.tree import HostTree


class UnionTree:
    """A trie of token paths below the root, number 0, and every drafter's votes for its nodes, by union number.

    `trees` holds one tree of selected children per drafter; without values every node counts as certain. A node's value
    is the product along its path of P(node is right | its parent is).
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

    def outcomes(self, emitted: Sequence[int]) -> Iterator[tuple[SiblingGroup, int | None]]:
        """The children of every node on the emitted path, pruned ones included, and the number of the right one."""
        node = 0
        for token in emitted:
            children = self._children[node]
            if children:
                yield self._group(node), list(children).index(token) if token in children else None
            if token not in children:
                return
            node = children[token]

    def voters(self, tokens: Sequence[int]) -> list[list[int]]:
        """The drafters that proposed each token of a path from the root, as far as it goes."""
        node = 0
        found = []
        for token in tokens:
            if token not in self._children[node]:
                break
            node = self._children[node][token]
            found.append(sorted(self.votes[node]))
        return found

    def find(self, tree: HostTree) -> list[int]:
        """The union numbers of a tree's nodes, all of which the union holds."""
        found = [0]
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            found.append(self._children[found[parent]][token])
        return found

    def _add(self, voter: int, tree: HostTree) -> None:
        """Siblings of the same token count as one."""
        at = [0]
        ranks = [0] * len(tree.tokens)
        confidences = tree.confidences()
        for node in range(1, len(tree.tokens)):
            above, token = tree.parents[node], tree.tokens[node]
            siblings = self._children[at[above]]
            if token not in siblings:
                siblings[token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(at[above])
                self.depths.append(self.depths[at[above]] + 1)
                self.votes.append({})
                self._children.append({})
            child = siblings[token]
            self.votes[child].setdefault(voter, Vote(ranks[above], confidences[node]))
            ranks[above] += 1
            at.append(child)

    def _group(self, node: int) -> SiblingGroup:
        """The node's children. A drafter with none of them ended its draft there: no vote against them."""
        votes = [self.votes[child] for child in self._children[node].values()]
        return SiblingGroup(votes, sorted({voter for vote in votes for voter in vote}), self.depths[node] + 1)
