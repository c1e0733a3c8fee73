"""G-tests of counts against exact probabilities."""

from collections.abc import Sequence

import numpy as np
import torch

MIN_EXPECTED = 5
"""Cells that expect fewer are pooled."""


def g_test(counts: Sequence[float] | np.ndarray, probs: Sequence[float] | np.ndarray, num_groups: int = 1) -> float:
    """The p-value of counts [n] against probabilities [n] that sum to one.

    Cells that expect fewer than five are pooled; an impossible outcome that came gives zero. `num_groups` is how many
    sums of the counts were fixed beforehand: one, or one for each context where several share a test.
    """
    observed = np.asarray(counts, dtype=float)
    share = np.asarray(probs, dtype=float)
    if observed[share == 0].any():
        return 0.0
    expected = share * observed.sum()
    is_small = expected < MIN_EXPECTED
    observed, expected = (np.append(x[~is_small], x[is_small].sum()) for x in (observed, expected))
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(expected) <= num_groups:
        return 1.0
    terms = np.where(observed > 0, observed * np.log(np.maximum(observed, 1e-300) / expected), 0.0)
    # The upper tail of chi-squared, without scipy, which treespec does not need otherwise.
    half = torch.tensor([(len(expected) - num_groups) / 2, max(float(terms.sum()), 0.0)], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
