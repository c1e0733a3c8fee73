"""Upper bounds for whole trees, and the probability with which a tree of fixed shape holds a path."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from treespec.errors import ConfigError

Path = tuple[int, ...]
"""Tokens below the root."""


def tree_bound(target_probs: Callable[[Path], Any], inclusion: Callable[[Path], float], max_depth: int) -> float:
    """Upper bound on the accepted draft tokens of any lossless rule on whole trees of any drafter.

    `U(root) = 1, U(s x) = min(P(x | s) U(s), Pr(s x in the tree))` and `E[accepted] <= sum of U`; attained on
    deterministic trees, not always on sampled ones. Visits every path that U gives mass. `target_probs` gives the
    distribution [V] after a path, `inclusion` the probability that the tree holds one, see `shape_inclusion`.
    """

    def below(path: Path, bound: float) -> float:
        if len(path) == max_depth:
            return 0.0
        total = 0.0
        for token, prob in enumerate(target_probs(path)):
            child = (*path, token)
            value = min(float(prob) * bound, inclusion(child)) if prob > 0 else 0.0
            total += value + below(child, value) if value > 0 else 0.0
        return total

    return below((), 1.0)


def path_bound(
    target_probs: Float[Tensor, "*rows L"], inclusion_probs: Float[Tensor, "*rows L"]
) -> Float[Tensor, "*rows"]:
    """One sample of the whole-tree bound at full vocabulary size: its mean over paths drawn from the target is U.

    Both arguments are of each prefix (1 to L tokens) of such a path. `U(s) / P(s)` is the least of 1 and inclusion / P
    over the prefixes of s, so `sum over its prefixes of U / P` has the mean `sum over all s of U(s)`: see `tree_bound`.
    """
    share = (inclusion_probs.double() / target_probs.double()).clamp(max=1)
    return share.cummin(-1).values.sum(-1)


def shape_inclusion(
    parents: Sequence[int], draft_probs: Callable[[Path], Any], is_without_replacement: bool = False
) -> Callable[[Path], float]:
    """The probability that a tree of fixed shape, children drawn from the draft distribution, holds a path of tokens.

    The shape is one parent per node, -1 for the root; `draft_probs` gives the distribution [V] after a path. Drawing k
    siblings without replacement costs O(V^(k-1)); otherwise they are i.i.d. Raises `ConfigError`: parents of no tree.
    """
    if list(parents[:1]) != [-1] or not all(0 <= parent < node for node, parent in enumerate(parents[1:], start=1)):
        raise ConfigError(f"parents must begin with -1, and every other one stand before its child, got {parents}")
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)

    @cache
    def draws(path: Path, k: int) -> list[np.ndarray]:
        return list(_draw_distributions(np.asarray(draft_probs(path), dtype=np.float64), k))

    @cache
    def held(node: int, path: Path, depth: int) -> float:
        """Pr(the subtree of `node`, reached by `path[:depth]`, holds the rest of the path)."""
        if depth == len(path):
            return 1.0
        rest = [held(child, path, depth + 1) for child in children[node]]
        if is_without_replacement:
            distributions = draws(path[:depth], len(rest))
            return sum(
                float(distribution[path[depth]]) * r for distribution, r in zip(distributions, rest, strict=True)
            )
        prob = float(draft_probs(path[:depth])[path[depth]])
        return 1 - math.prod(1 - prob * r for r in rest)

    return lambda path: held(0, path, 0)


def _draw_distributions(probs: Float[np.ndarray, " V"], k: int) -> Iterator[Float[np.ndarray, " V"]]:
    """The unconditional distributions of the first to the k-th draw without replacement; zero once nothing is left."""
    if k == 0:
        return
    yield probs
    later = [np.zeros_like(probs) for _ in range(k - 1)]
    for token in np.flatnonzero(probs):
        rest = probs.copy()
        rest[token] = 0
        if k > 1 and rest.sum() > 0:
            for total, part in zip(later, _draw_distributions(rest / rest.sum(), k - 1), strict=True):
                total += probs[token] * part
    yield from later
