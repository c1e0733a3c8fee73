"""G-tests of counts against exact probabilities."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np

from treespec.errors import ConfigError

MIN_EXPECTED = 5
"""Cells that expect fewer are pooled."""

_Outcome = TypeVar("_Outcome", bound=Hashable)


def g_test(counts: Mapping[_Outcome, int], probs: Mapping[_Outcome, float], num_groups: int = 1) -> float:
    """The p-value of counted outcomes under exact probabilities that sum to one.

    Cells that expect fewer than five are pooled; an outcome of probability zero, or none, that came gives zero.
    `num_groups` is how many sums of the counts were fixed beforehand: one, or one for each context where several
    share a test.

    Raises `ConfigError`: the probabilities do not sum to one.
    """
    from scipy.stats import chi2, power_divergence  # Here, as it takes long to import.

    share = np.array(list(probs.values()), dtype=float)
    if not np.isclose(share.sum(), 1, atol=1e-6):
        raise ConfigError(f"the probabilities of all outcomes must sum to one, got {share.sum()}")
    if any(count and not probs.get(outcome) for outcome, count in counts.items()):
        return 0.0
    observed = np.array([counts.get(outcome, 0) for outcome in probs], dtype=float)
    expected = share / share.sum() * observed.sum()
    is_small = expected < MIN_EXPECTED
    observed, expected = (np.append(x[~is_small], x[is_small].sum()) for x in (observed, expected))
    observed, expected = observed[expected > 0], expected[expected > 0]
    if len(expected) <= num_groups:
        return 1.0
    # Rounding may make G of equal counts negative, where `power_divergence` has no p-value.
    g = max(float(power_divergence(observed, expected, lambda_="log-likelihood").statistic), 0.0)
    return float(chi2.sf(g, len(expected) - num_groups))
