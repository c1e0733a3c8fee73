"""What drafts are worth: the drafter's confidences, corrected by what became of earlier nodes of the same kind.

A best-first tree holds all smaller ones and the chain of first children, so one drafted tree says what each of them
would gain, and its least probable nodes what a larger tree would add.

Axis letters: J numbers of nodes, s shapes.
"""

from bisect import bisect
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from treespec.policies.calibration import Calibration
from treespec.policies.control.candidates import Candidates, Shape
from treespec.tree import TreeBatch

BIN_EDGES = (0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99)
"""Bins of confidences, narrow where a small difference matters along a path."""
MOST_RANK = 3
"""Later siblings are corrected together."""
PRIOR_TRIALS, TRIAL_MEMORY = 14.0, 0.997
"""See `Calibration`."""
OUTCOME_MEMORY, PRIOR_ACCEPTED = 0.96, 6.0
"""The factor per drafted step on what was accepted, and the tokens that expectations without it count for."""
STEP_MEMORY, PRIOR_STEPS = 0.985, 2.0
"""The factor per drafted step on what shapes have shown, and the steps that the first expectation counts for."""


class DraftedTree:
    """One row's tree as plain lists by node, as it has few.

    Attributes:
        probs: the probability that a node's whole path is accepted, never rising along a path.
        order: the nodes below the root by falling probability, parents first; `chain`: the path of first children.
    """

    def __init__(self, tokens: list[int], parents: list[int], values: list[float] | None, known: Calibration) -> None:
        self.tokens, self.parents, self.depths, self.probs = tokens, [-1], [0], [1.0]
        self.cells = [(0, 0)]
        """Where a node's confidence is corrected, given that its parent is right."""
        self.chain, num_children = list[int](), [0] * len(parents)
        for node, above in enumerate(parents[1:], start=1):
            if above < 0:
                break  # Padding comes last.
            rank = num_children[above]
            num_children[above] += 1
            claim, bin_number = 0.5 * 0.35**rank, -1  # A guess, where the drafter does not say.
            if values is not None:
                claim = min(values[node] / values[above], 1.0) if values[above] > 0 else 1.0
                bin_number = bisect(BIN_EDGES, claim)
            self.cells.append((min(rank, MOST_RANK), bin_number))
            self.parents.append(above)
            self.depths.append(self.depths[above] + 1)
            self.probs.append(self.probs[above] * known.estimate(claim, self.cells[-1:]))
            if rank == 0 and above == (self.chain[-1] if self.chain else 0):
                self.chain.append(node)
        self.order = sorted(range(1, len(self.parents)), key=lambda node: -self.probs[node])

    def learn(self, known: Calibration, emitted: Sequence[int]) -> None:
        """Count the children of right nodes whose next token is known; the root is right."""
        right = {0}
        for node in range(1, len(self.parents)):
            depth = self.depths[node]
            if self.parents[node] in right and depth <= len(emitted):
                is_right = self.tokens[node] == emitted[depth - 1]
                known.update(is_right, [self.cells[node]])
                if is_right:
                    right.add(node)

    def best(self, shape: Shape, num_nodes: int, is_full: bool) -> Float[np.ndarray, "J"]:
        """The probabilities of the best nodes of a smaller tree of another shape, and what larger ones would add.

        Chains are continued at their last rate. Of trees that are full the j-th best of n nodes is taken to be n / j as
        probable as the n-th.
        """
        nodes = self.chain if shape.is_chain else [n for n in self.order if self.depths[n] <= shape.depth]
        probs, found = [self.probs[node] for node in nodes][:num_nodes], np.zeros(num_nodes)
        size, last = len(probs), probs[-1] if probs else 0.0
        found[:size] = probs
        if last and shape.is_chain:
            rate = last / (probs[-2] if size > 1 else 1.0)
            found[size:] = last * rate ** np.arange(1, num_nodes - size + 1)
        elif last and is_full:
            found[size:] = last * size / np.arange(size + 1, num_nodes + 1)
        return found


class Acceptance:
    """Expected accepted tokens and draft passes of every candidate.

    By shape it keeps the mean probabilities of the first, second, ... best node of drafted trees, and their passes.
    """

    def __init__(self, candidates: Candidates) -> None:
        self._candidates, self._known = candidates, Calibration(PRIOR_TRIALS, TRIAL_MEMORY)
        num_shapes, self._num_nodes = len(candidates.shapes), int(candidates.num_nodes.max())
        self._sums = np.zeros((num_shapes, 1 + self._num_nodes))
        self._sums[:, 1:] = PRIOR_STEPS * 0.4 * 0.6 ** np.arange(self._num_nodes)
        self._passes = np.full(num_shapes, 2 * PRIOR_STEPS)  # Few, as trees stop where passes do not pay.
        self._weights = np.full(num_shapes, PRIOR_STEPS)
        self._accepted = self._predicted = PRIOR_ACCEPTED
        """Accepted tokens per row, and what was expected of the same trees; older ones count less."""

    @property
    def expected(self) -> Float[np.ndarray, "2 C"]:
        """Accepted tokens and draft passes."""
        numbers, num_nodes = self._candidates.numbers, self._candidates.num_nodes
        sums = self._sums.cumsum(1)[numbers, num_nodes]
        passes = np.where(numbers == 0, num_nodes, np.minimum(num_nodes, (self._passes / self._weights)[numbers]))
        return np.array([sums / self._weights[numbers] * self._accepted / self._predicted, passes])

    def read(self, trees: TreeBatch) -> list[DraftedTree]:
        """A step's trees with their probabilities."""
        values = [None] * trees.num_rows if trees.values is None else trees.values.tolist()
        rows = zip(trees.tokens.tolist(), trees.parents.tolist(), values, strict=True)
        return [DraftedTree(*row, self._known) for row in rows]

    def update(self, trees: Sequence[DraftedTree], num_nodes: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        """Learn which nodes were right; `num_nodes`: how many of a tree were verified, root included."""
        rest = (1 - OUTCOME_MEMORY) * PRIOR_ACCEPTED
        self._accepted = OUTCOME_MEMORY * self._accepted + rest
        self._predicted = OUTCOME_MEMORY * self._predicted + rest
        for tree, count, tokens in zip(trees, num_nodes, emitted, strict=True):
            self._accepted += (len(tokens) - 1) / len(trees)
            self._predicted += sum(tree.probs[node] for node in tree.order[: count - 1]) / len(trees)
            tree.learn(self._known, tokens)

    def add(self, trees: Sequence[DraftedTree], chosen: int, num_passes: int) -> None:
        """Count what a step's trees, drafted by candidate number `chosen`, show of all."""
        candidate = self._candidates[chosen]
        for number, shape in enumerate(self._candidates.shapes):
            if shape.is_chain or (not candidate.shape.is_chain and shape.depth <= candidate.shape.depth):
                is_full = shape == candidate.shape and all(len(t.order) >= candidate.num_nodes - 1 for t in trees)
                best = sum(tree.best(shape, self._num_nodes, is_full) for tree in trees) / len(trees)
                self._sums[number, 1:] = STEP_MEMORY * self._sums[number, 1:] + best
                self._passes[number] = STEP_MEMORY * self._passes[number] + min(num_passes, shape.depth)
                self._weights[number] = STEP_MEMORY * self._weights[number] + 1
