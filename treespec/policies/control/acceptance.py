"""What drafts are worth: the drafter's confidences, corrected by what became of earlier nodes of the same kind.

A best-first tree holds all smaller ones and the chain of first children, so one drafted tree says what each of them
would gain, and its least probable nodes what a larger tree would add.

Axis letters: c some candidates, t numbers of nodes.
"""

from bisect import bisect
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float, Num

from treespec.policies.calibration import Calibration
from treespec.policies.control.candidates import Candidates
from treespec.tree import TreeBatch

BIN_EDGES = (0.01, 0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99)
"""Bins of confidences, narrow where a small difference matters along a path."""
MOST_RANK, MOST_DEPTH = 3, 4
"""Later siblings and deeper nodes are corrected together."""
PRIOR_TRIALS, TRIAL_MEMORY = 24.0, 0.997
"""See `Calibration`."""
OUTCOME_MEMORY, PRIOR_ACCEPTED = 0.96, 6.0
"""The factor per drafted step on what was accepted, and the tokens that expectations without it count for."""
STEP_MEMORY, PRIOR_STEPS = 0.985, 2.0
"""The factor per drafted step on what candidates have shown, and the steps that the first expectation counts for."""


class DraftedTree:
    """One row's tree as plain lists by node, as it has few.

    Attributes:
        claims: the drafter's confidence that a node is right if its parent is; `cells`: where it is corrected.
        probs: the probability that a node's whole path is accepted, never rising along a path.
        order: the nodes below the root by falling probability, parents first; `chain`: the path of first children.
    """

    def __init__(self, tokens: list[int], parents: list[int], values: list[float] | None, known: Calibration) -> None:
        self.parents, self.depths, self.claims, self.probs = [-1], [0], [1.0], [1.0]
        self.cells: list[Sequence[Hashable]] = [()]
        self.children: dict[tuple[int, int], int] = {}
        self.chain, num_children = list[int](), [0] * len(parents)
        for node, above in enumerate(parents[1:], start=1):
            if above < 0:
                break  # Padding comes last.
            rank, depth = num_children[above], self.depths[above] + 1
            num_children[above] += 1
            claim, bin_number = 0.5 * 0.35**rank, -1  # A guess, where the drafter does not say.
            if values is not None:
                claim = min(values[node] / values[above], 1.0) if values[above] > 0 else 1.0
                bin_number = bisect(BIN_EDGES, claim)
            coarse = min(rank, MOST_RANK), bin_number
            self.cells.append((coarse, (*coarse, min(depth, MOST_DEPTH))))
            self.parents.append(above)
            self.depths.append(depth)
            self.claims.append(claim)
            self.probs.append(self.probs[above] * known.estimate(claim, self.cells[node]))
            self.children.setdefault((above, tokens[node]), node)
            if rank == 0 and above == (self.chain[-1] if self.chain else 0):
                self.chain.append(node)
        self.order = sorted(range(1, len(self.parents)), key=lambda node: -self.probs[node])

    def learn(self, known: Calibration, emitted: Sequence[int]) -> None:
        """Count the children of right nodes whose next token is known; the root is right."""
        right, followed, node = {0}, set[int](), 0
        for token in emitted:
            followed.add(node)
            node = self.children.get((node, token), -1)
            right.add(node)
        for node in range(1, len(self.parents)):
            if self.parents[node] in followed:
                known.update(node in right, self.cells[node])


class Acceptance:
    """Expected accepted tokens, verified nodes below the root and draft passes of every candidate."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates, self._known = candidates, Calibration(PRIOR_TRIALS, TRIAL_MEMORY)
        prior = 1.0 - 0.6**candidates.num_nodes
        passes = np.minimum(candidates.num_nodes, 2)  # Few, as trees stop where passes do not pay.
        self._sums = PRIOR_STEPS * np.array([prior, candidates.num_nodes, passes])
        self._weights = np.full(len(candidates), PRIOR_STEPS)
        self._accepted = self._predicted = PRIOR_ACCEPTED
        """Accepted tokens per row, and what was expected of the same trees; older ones count less."""

    @property
    def expected(self) -> Float[np.ndarray, "3 C"]:
        """Accepted tokens, nodes below the root and draft passes."""
        found = self._sums / self._weights
        found[0] *= self._accepted / self._predicted
        return found

    def read(self, trees: TreeBatch) -> list[DraftedTree]:
        """A step's trees with their probabilities."""
        values = [None] * trees.num_rows if trees.values is None else trees.values.tolist()
        rows = zip(trees.tokens.tolist(), trees.parents.tolist(), values, strict=True)
        return [DraftedTree(*row, self._known) for row in rows]

    def update(self, trees: Sequence[DraftedTree], num_nodes: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        """Learn which nodes were right; `num_nodes`: how many of a tree were verified, root included."""
        verified = zip(trees, num_nodes, strict=True)
        expected = sum(tree.probs[node] for tree, count in verified for node in tree.order[: count - 1]) / len(trees)
        accepted = sum(map(len, emitted)) / len(emitted) - 1
        rest = (1 - OUTCOME_MEMORY) * PRIOR_ACCEPTED
        self._accepted = OUTCOME_MEMORY * self._accepted + rest + accepted
        self._predicted = OUTCOME_MEMORY * self._predicted + rest + expected
        for tree, tokens in zip(trees, emitted, strict=True):
            tree.learn(self._known, tokens)

    def add(
        self, trees: Sequence[DraftedTree], chosen: int, num_passes: int, worth: Float[np.ndarray, "t"] | None
    ) -> None:
        """Count what a step's trees, drafted by candidate number `chosen`, show of all.

        `worth`: the accepted tokens that the time of n nodes below each root is worth; None where trees are not cut.
        """
        candidates, candidate = self._candidates, self._candidates[chosen]
        self._count(candidates.chains, self._of_chains(trees))
        is_full = all(len(tree.order) >= candidate.num_nodes - 1 for tree in trees)
        for depth, numbers in () if candidate.is_chain else candidates.by_depth.items():
            if depth <= candidate.depth:
                sizes = candidates.num_nodes[numbers]
                gains = _mean_gains(trees, depth, sizes[-1], is_full and depth == candidate.depth)
                kept = len(gains) - 1 if worth is None else int((gains - worth[: len(gains)]).argmax())
                nodes = np.minimum(sizes, kept)
                self._count(numbers, [gains[nodes], nodes, np.minimum(min(num_passes, depth), sizes)])

    def _count(self, numbers: slice, shown: Sequence[Num[np.ndarray, "c"]]) -> None:
        self._sums[:, numbers] = STEP_MEMORY * self._sums[:, numbers] + shown
        self._weights[numbers] = STEP_MEMORY * self._weights[numbers] + 1

    def _of_chains(self, trees: Sequence[DraftedTree]) -> Sequence[Num[np.ndarray, "c"]]:
        """Chains of first children; where they end they are continued at their last rate."""
        lengths = self._candidates.num_nodes[self._candidates.chains]
        levels = np.ones((len(trees), 1 + max(lengths, default=0)))
        for row, tree in zip(levels, trees, strict=True):
            probs = [1.0, *(tree.probs[node] for node in tree.chain)][: len(row)]
            share = probs[-1] / probs[-2] if len(probs) > 1 and probs[-2] > 0 else 0.0
            row[:] = [*probs, *(probs[-1] * share ** np.arange(1, 1 + len(row) - len(probs)))]
        return [levels.mean(0).cumsum()[lengths] - 1, lengths, lengths]


def _mean_gains(trees: Sequence[DraftedTree], depth: int, most: int, is_full: bool) -> Float[np.ndarray, "t"]:
    """Accepted tokens by numbers of nodes below each root, from 0 on, no deeper than `depth`; a mean of the rows.

    Further nodes than were drafted are expected of full trees: the j-th best of n is taken to be n / j as probable as
    the n-th.
    """
    gains = np.zeros((len(trees), most + 1))
    for row, tree in zip(gains, trees, strict=True):
        probs = [tree.probs[node] for node in tree.order if tree.depths[node] <= depth][:most]
        row[1 : 1 + len(probs)] = probs
        if is_full and probs:
            row[1 + len(probs) :] = probs[-1] * len(probs) / np.arange(len(probs) + 1, most + 1)
    return gains.mean(0).cumsum()
