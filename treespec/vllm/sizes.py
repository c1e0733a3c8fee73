"""Whether a step drafts, in which way, and how many drafted nodes it verifies, over all requests of the batch at once.

The control of `tree="auto"` chooses the shape of one request's tree from a profile of the model's passes, measured with
nothing else at work. A server has neither: its batches change with every step, their requests share the nodes, and
passes are not measured beforehand. So times are fitted to steps alone, with the control's regression, and a draft is
made or left out for the whole batch.

A step of B requests and n tokens takes about a + b B + c n milliseconds, a draft about d + e B + f u with u tokens that
a head has yet to read. Drafted nodes bring their value, the probability that a node's whole path is accepted, corrected
by what became of nodes with like values. What the mean draft brings at the best number of nodes decides before a step
whether one is made: nothing is drafted where that is predicted to lose. Of a draft the best m nodes of the batch, of
whichever request, are verified for the m with the most expected tokens per millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from treespec.tree import ROOT_PARENT, TreeBatch, Verdict
from treespec.vllm.methods import Method
from treespec.vllm.times import TimeModel

LEAST_GAIN = 1.02
"""A draft must be predicted to be this many times as fast as plain decoding."""
EXPLORED_EVERY = 16
"""Once in this many drafts a size between plain and the best one is taken, so that the times of both are known."""
PRIOR_SHARE = 0.02
"""Before anything is known, a token more takes this share of a pass of one token."""


@dataclass(frozen=True)
class Prices:
    """What a draft must bring to be worth its time, in expected tokens by the drafter's own values.

    `ms`: a millisecond, per request; `node`: the verification of a node.
    """

    ms: float = 0.0
    node: float = 0.0


class TreeSizes:
    """Chooses among ways to draft, nothing included, and cuts a step's trees to the nodes that are worth their time.

    Args:
        num_methods: ways to draft, from the cheapest on.
    """

    def __init__(self, num_methods: int = 1) -> None:
        self.passes = TimeModel((1.0, 0.0, PRIOR_SHARE), (1.0, 1.0, PRIOR_SHARE))
        """By requests and tokens."""
        self.methods = [Method() for _ in range(num_methods)]
        self.prices = Prices()
        """The prices of the step chosen last."""
        self._method: Method | None = None
        self._num_drafts = 0

    def choose(self, num_requests: int, unread: Sequence[int]) -> int | None:
        """The number of the way to draft for the next step, None for plain decoding; call it once per step.

        Args:
            unread: by method the tokens that have to be read before the draft.
        """
        chosen = self._choose(num_requests, unread)
        self._method = None if chosen is None else self.methods[chosen]
        return chosen

    def _choose(self, num_requests: int, unread: Sequence[int]) -> int | None:
        plain_ms = float(self.passes.predict(num_requests, num_requests))
        rates = [m.rate(num_requests, u, self.passes) for m, u in zip(self.methods, unread, strict=True)]
        best = int(np.argmax(rates))
        self._set_prices(max(rates[best], num_requests / plain_ms), num_requests, self.methods[best])
        for number, method in enumerate(self.methods):
            if method.is_new:
                return number
        wins = rates[best] * plain_ms / num_requests >= LEAST_GAIN
        if wins:
            self.methods[best].win()
        for number, method in enumerate(self.methods):
            ms = float(method.times.predict(num_requests, unread[number]))
            if not (wins and number == best) and method.is_due(ms, plain_ms):
                return number
        return best if wins else None

    def _set_prices(self, rate: float, num_requests: int, method: Method) -> None:
        rate /= method.correction
        self.prices = Prices(rate / num_requests, rate * float(self.passes.coefficients[-1]))

    def cut(self, trees: TreeBatch) -> TreeBatch:
        """The most valuable nodes of a batch of trees of selected children; others are left alone."""
        if trees.values is None or trees.draft_probs is not None or self._method is None:
            return trees
        num_rows = trees.num_rows
        values = _falling(trees, trees.values.double().numpy())
        self._method.add(values[values > 0], num_rows)
        values = _falling(trees, self._method.correct(values))
        order = np.argsort(-values, axis=None, kind="stable")
        ranked = values.flatten()[order]
        ranked = ranked[ranked > 0]
        expected = num_rows + np.append(0.0, np.cumsum(ranked))
        draft_ms = float(self._method.times.predict(num_rows, 0))
        times = self.passes.predict(num_rows, num_rows + np.arange(len(expected))) + draft_ms
        best = int((expected / times).argmax())
        self._num_drafts += 1
        if self._num_drafts % EXPLORED_EVERY == 0:
            best //= 2
        keep = np.zeros(values.size, dtype=bool)
        keep[order[:best]] = True
        keep = torch.from_numpy(keep.reshape(values.shape)) | (trees.parents == ROOT_PARENT)
        return trees.keep_nodes(keep)

    def update(self, trees: TreeBatch, verdicts: Sequence[Verdict]) -> None:
        """Learn what became of a step's trees, before the next `choose`."""
        if self._method is None or trees.values is None or trees.draft_probs is not None:
            return
        values = _falling(trees, trees.values.double().numpy())
        accepted = [values[row, list(verdict.path[1:])] for row, verdict in enumerate(verdicts)]
        self._method.update(values[trees.parents.numpy() >= 0], np.concatenate(accepted))

    def observe_pass(self, num_requests: int, num_tokens: int, ms: float) -> None:
        """Learn the time of a step without chunks of prompts."""
        self.passes.observe(num_requests, num_tokens, ms=ms)

    def observe_draft(self, num_requests: int, unread: int, ms: float) -> None:
        """Learn the time of the draft just made."""
        if self._method is not None:
            self._method.times.observe(num_requests, unread, ms=ms)


def _falling(trees: TreeBatch, values: np.ndarray) -> np.ndarray:
    """Values [B, N] that never rise along a path; 0 at roots, which are kept anyway, and padding."""
    is_draft = trees.parents.numpy() >= 0
    is_above = trees.ancestors.numpy() & is_draft[:, None, :]
    return np.where(is_draft, np.where(is_above, values[:, None, :], 1.0).min(-1), 0.0)
