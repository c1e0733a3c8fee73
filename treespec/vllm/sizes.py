"""How many drafted nodes a step verifies: as many as are predicted to pay, over all requests of the batch at once.

The control of `tree="auto"` chooses the shape of one request's tree from a profile of the model's passes, measured with
nothing else at work. A server has neither: its batches change with every step, their requests share the nodes, and
passes are not measured beforehand. So times are fitted to steps alone, with the control's regression, and a draft is
tried or left out for the whole batch.

A step of B requests and n tokens takes about a + b B + c n milliseconds, fitted to the steps served. Drafted nodes
bring their value, the probability that a node's whole path is accepted. The best m nodes of the batch, of whichever
request, are verified for the m with the most expected tokens per millisecond; m = 0 is plain decoding.
"""

from __future__ import annotations

import numpy as np
import torch

from treespec.policies.control.regression import TimeRegression
from treespec.tree import PADDING_PARENT, ROOT_PARENT, TreeBatch

FORGETTING = 0.98
"""What earlier steps count for at every new one."""
LEAST_GAIN = 1.02
"""A draft must be predicted to be this many times as fast as plain decoding."""
FIRST_WAIT, LONGEST_WAIT = 4, 128
"""Steps without a draft before one is tried again, doubled while it does not pay."""
EXPLORED_EVERY = 16
"""Every so many steps a size between plain and the best one is taken, so that the times of both are known."""
PRIOR_WEIGHT = 0.02
"""In steps."""
OUTLIER = 3.0
"""A step that takes more times what was predicted counts as so many."""
PRIOR_SHARE = 0.02
"""Before anything is known, a token more takes this share of a pass of one token."""
FIRST_SHAPE = (1.0, 0.0, PRIOR_SHARE)
"""The coefficients of start, requests and tokens then, in units of one pass."""


class PassModel:
    """Milliseconds of a step by its requests and tokens: ridge regression on the steps served, recent ones first."""

    def __init__(self) -> None:
        self._regression: TimeRegression | None = None

    def predict(self, num_requests: int, num_tokens: np.ndarray) -> np.ndarray:
        """Milliseconds, never falling with tokens; in units of one pass before the first step."""
        known = self._regression
        start, request, token = np.array(FIRST_SHAPE) if known is None else known.coefficients
        return start + request * num_requests + token * num_tokens

    def observe(self, num_requests: int, num_tokens: int, ms: float) -> None:
        """Learn one step."""
        features = np.array([1.0, num_requests, num_tokens])
        if self._regression is None:
            prior = ms / float(features @ FIRST_SHAPE) * np.array(FIRST_SHAPE)
            scale = np.maximum(prior, 0.1 * prior.max() * np.array([1, 1, PRIOR_SHARE]))
            self._regression = TimeRegression(prior, PRIOR_WEIGHT / scale**2, FORGETTING)
        expected = max(self._regression.predict(features), 1e-6)
        self._regression.add(features, min(ms, OUTLIER * expected), weight=1 / expected**2)  # Relative errors count.
        self._regression.fit()


class TreeSizes:
    """Cuts a step's trees to the nodes that are worth their time, and decides when to draft."""

    def __init__(self) -> None:
        self.passes = PassModel()
        self._draft_ms = 0.0
        self._steps = self._left = 0
        self._wait = FIRST_WAIT
        self._hits, self._predicted = 4.0, 4.0
        self._expected = 0.0
        self.value_per_ms = 0.0
        """What drafted nodes must be worth together, per request, to be drafted in a millisecond more."""

    def wants_draft(self) -> bool:
        """Whether a draft is to be made for the next step; call it once per step."""
        self._steps += 1
        self._left = max(self._left - 1, 0)
        return self._left == 0

    def cut(self, trees: TreeBatch) -> TreeBatch:
        """The most valuable nodes of a batch of trees of selected children; others are left alone."""
        if trees.values is None or trees.draft_probs is not None:
            return trees
        num_rows = trees.num_rows
        values = _falling_values(trees)
        order = np.argsort(-values, axis=None, kind="stable")
        ranked = values.flatten()[order]
        ranked = ranked[ranked > 0]
        expected = num_rows + np.append(0.0, np.cumsum(ranked)) * self._hits / self._predicted
        times = self.passes.predict(num_rows, num_rows + np.arange(len(expected))) + self._draft_ms
        rates = expected / times
        best = int(rates.argmax())
        self.value_per_ms = float(rates[best]) / num_rows * self._predicted / self._hits
        self._decide(rates[best] * (times[0] - self._draft_ms) / num_rows)
        if self._steps % EXPLORED_EVERY == 0:
            best //= 2
        self._expected = float(ranked[:best].sum())
        keep = np.zeros(values.size, dtype=bool)
        keep[order[:best]] = True
        keep = torch.from_numpy(keep.reshape(values.shape)) | (trees.parents == ROOT_PARENT)
        return trees.keep_nodes(keep)

    def observe(self, num_requests: int, num_tokens: int, num_accepted: int, ms: float, draft_ms: float | None) -> None:
        """Learn a step without chunks of prompts; `draft_ms` is None where nothing was drafted after it."""
        self.passes.observe(num_requests, num_tokens, ms)
        if draft_ms is not None:
            self._draft_ms += 0.1 * (draft_ms - self._draft_ms)
        if num_tokens > num_requests and self._expected > 0:
            self._hits = FORGETTING * self._hits + num_accepted
            self._predicted = FORGETTING * self._predicted + self._expected

    def _decide(self, gain: float) -> None:
        if gain >= LEAST_GAIN:
            self._wait = max(self._wait // 2, FIRST_WAIT)
        else:
            self._left, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)


def _falling_values(trees: TreeBatch) -> np.ndarray:
    """Values [B, N] that never rise along a path; 0 at roots, which are kept anyway, and padding."""
    assert trees.values is not None
    values = np.where(trees.ancestors.numpy(), trees.values.double().numpy()[:, None, :], np.inf).min(-1)
    is_draft = (trees.parents != PADDING_PARENT) & (trees.parents >= 0)
    return np.where(is_draft.numpy(), np.minimum(values, 1.0), 0.0)
