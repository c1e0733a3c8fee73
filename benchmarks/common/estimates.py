"""Estimates of several prompts that `treespec.lab.measure` does not need itself."""

from collections.abc import Sequence

import numpy as np

from treespec.lab.measure.paired import Estimate, Floats, bootstrap, ratios


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The median paired ratio."""
    return bootstrap(ratios(above, below), np.median)


def quotient(above: Floats, below: Floats, groups: Sequence[int] | None = None) -> Estimate:
    """The quotient of sums, such as all tokens by all passes; pairs are drawn, or the groups that they are in."""
    pairs = np.stack([above, below], axis=-1)
    if groups is not None:
        pairs = np.stack([pairs[np.equal(groups, group)].sum(0) for group in np.unique(groups)])
    return bootstrap(pairs, lambda drawn, axis: np.divide(*drawn.sum(axis).T))


def cross_fitted(candidates: dict[str, Sequence[float]], num_folds: int = 4) -> tuple[list[float], list[str]]:
    """The best candidate's measurements without hindsight: in every fold the one that is best on the other folds.

    A single prompt has no others: the best on it.

    Args:
        candidates: by name, one number per prompt, more is better; of equals the first is chosen.

    Returns:
        One number per prompt, and the name chosen in every fold.
    """
    size = len(next(iter(candidates.values())))
    folds = np.arange(size) % num_folds
    values, names = np.zeros(size), []
    for fold in range(min(num_folds, size)):
        is_other = folds != fold if size > 1 else folds == fold
        others = {name: np.asarray(found)[is_other] for name, found in candidates.items()}
        names.append(max(others, key=lambda name: float(np.mean(others[name]))))
        values[folds == fold] = np.asarray(candidates[names[-1]])[folds == fold]
    return values.tolist(), names
