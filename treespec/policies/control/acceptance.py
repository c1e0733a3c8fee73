"""The expected gain of drafts: the drafter's confidences, corrected by what became of earlier nodes of the same kind.

A best-first tree holds all smaller ones, so one drafted tree says what each of them would gain, and its least probable
nodes what a larger tree would add.
"""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate

from treespec.policies.calibration import Calibration
from treespec.tree import HostTree, TreeBatch

BIN_EDGES = (0.03, 0.15, 0.5, 0.7, 0.85, 0.97)
"""Bins of confidences; first and later siblings have their own."""
MEMORY = 0.98
"""The factor on earlier outcomes per node of a kind, and per drafted step."""
PRIOR_TRIALS, PRIOR_ACCEPTED = 14.0, 4.0
"""The outcomes that a confidence alone counts for, and the accepted tokens that expectations alone count for."""
FIRST_GUESS = 0.6
"""The prior probability that a tree's best node is accepted; the j-th best one's is a j-th of it."""


class DraftedTree:
    """One row's tree as plain lists by node, as it has few.

    Attributes:
        probs: the probability that a node's whole path is accepted, never rising along a path.
        worth: the same; of drawn nodes, before they were drawn, for a draw says nothing of smaller and larger trees'.
        order: the nodes below the root by falling worth, parents first.
    """

    def __init__(self, tree: HostTree, known: Calibration, is_drawn: bool) -> None:
        self.tokens, self.parents = tree.tokens, tree.parents
        self.depths, self.probs, self.worth, self.cells = [0], [1.0], [1.0], [(False, 0)]
        """Cells: where a node's confidence is corrected, given that its parent is right."""
        num_children = [0] * len(tree.parents)
        for above, claim in list(zip(tree.parents, tree.confidences(), strict=True))[1:]:
            rank = num_children[above]
            num_children[above] += 1
            guess = 0.5 * 0.35**rank  # Where the drafter does not say.
            self.cells.append((rank > 0, bisect(BIN_EDGES, claim) if tree.values else -1))
            self.depths.append(self.depths[above] + 1)
            self.probs.append(self.probs[above] * known.estimate(claim if tree.values else guess, self.cells[-1:]))
            worth = self.probs[above] * known.estimate(guess, [rank > 0]) if is_drawn else self.probs[-1]
            self.worth.append(min(self.worth[above], worth))
        self.order = sorted(range(1, len(self.parents)), key=lambda node: -self.worth[node])  # Stable: parents first.

    def learn(self, known: Calibration, emitted: Sequence[int]) -> None:
        """Count the children of right nodes whose next token is known; the root is right."""
        right = {0}
        for node in range(1, len(self.parents)):
            depth = self.depths[node]
            if self.parents[node] in right and depth <= len(emitted):
                is_right = self.tokens[node] == emitted[depth - 1]
                known.update(is_right, [self.cells[node], self.cells[node][0]])
                if is_right:
                    right.add(node)

    def best(self, num_nodes: int, is_full: bool) -> list[float]:
        """The best nodes' probabilities; past a full tree of n the j-th counts as n / j as worth as the n-th."""
        probs = [self.probs[node] for node in self.order[:num_nodes]]
        more = self.worth[self.order[-1]] * len(probs) if probs and is_full else 0.0
        return probs + [more / number for number in range(len(probs) + 1, num_nodes + 1)]


class Acceptance:
    """Expected accepted tokens of trees by their number of nodes.

    It keeps the mean probabilities of drafted trees' first to `most`-th best node, and how often there was one.
    """

    def __init__(self, most: int) -> None:
        self._known = Calibration(PRIOR_TRIALS, MEMORY)
        self._sums, self._weight = [0.0] + [FIRST_GUESS / number for number in range(1, most + 1)], 1.0
        self._found = [0.0] + [1.0] * most
        self._accepted = self._predicted = PRIOR_ACCEPTED
        """Accepted tokens per row, and what was expected of the same trees; older ones count less."""

    @property
    def expected(self) -> list[float]:
        """Accepted tokens by the number of verified nodes below the root."""
        return [total * self._accepted / self._predicted / self._weight for total in accumulate(self._sums)]

    @property
    def num_nodes(self) -> list[float]:
        """Nodes below the root that there will be, by the number that is asked for."""
        return [total / self._weight for total in accumulate(self._found)]

    def read(self, trees: TreeBatch) -> list[DraftedTree]:
        """A step's trees with their probabilities."""
        return [DraftedTree(tree, self._known, trees.draft_probs is not None) for tree in trees.host_trees()]

    def add(self, trees: Sequence[DraftedTree], asked: int) -> None:
        """Count what a step's trees, of which `asked` nodes below the root were asked for, show of all sizes."""
        is_full = all(len(tree.order) >= asked for tree in trees)
        rows = [tree.best(len(self._sums) - 1, is_full) for tree in trees]
        best = [0.0, *(sum(column) / len(trees) for column in zip(*rows, strict=True))]
        self._found = [MEMORY * found + (prob > 0) for found, prob in zip(self._found, best, strict=True)]
        self._sums = [MEMORY * total + prob for total, prob in zip(self._sums, best, strict=True)]
        self._weight = MEMORY * self._weight + 1

    def update(self, trees: Sequence[DraftedTree], emitted: Sequence[Sequence[int]]) -> None:
        """Learn which nodes of verified trees were right."""
        rest = (1 - MEMORY) * PRIOR_ACCEPTED
        self._accepted, self._predicted = MEMORY * self._accepted + rest, MEMORY * self._predicted + rest
        for tree, tokens in zip(trees, emitted, strict=True):
            self._accepted += (len(tokens) - 1) / len(trees)
            self._predicted += sum(tree.probs[1:]) / len(trees)
            tree.learn(self._known, tokens)
