"""Conditional distributions of toy models, and a toy drafter for every sampling scheme.

An array is numpy float64, or object with Fraction entries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from treespec.errors import ConfigError
from treespec.protocols import RandomSource
from treespec.testing.trees import Context, Shape, ToyTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT

SEVERAL_DRAFTERS = "several_drafters"
TOY_SCHEMES = (SELECTED, IID, WITHOUT_REPLACEMENT, MIXED, SEVERAL_DRAFTERS)

ConditionalProbs = Callable[[Context], np.ndarray]
"""Maps a context to the distribution [V] of the next token. Arrays may be shared: nobody writes to them."""


@dataclass(eq=False)
class RandomDistributions:
    """A conditional distribution per context, drawn once from small integer weights by `seed`.

    `is_exact` makes them Fractions instead of float64. `zero_share` is the share of tokens of probability zero.
    """

    vocab_size: int
    seed: int
    is_exact: bool = False
    zero_share: float = 0.0
    _probs: dict[Context, np.ndarray] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, context: Context) -> np.ndarray:
        if context not in self._probs:
            rng = np.random.default_rng([self.seed, len(context), *context])
            weights = rng.integers(1, 20, self.vocab_size)
            weights *= rng.random(self.vocab_size) >= self.zero_share
            weights[rng.integers(self.vocab_size)] += 1
            self._probs[context] = toy_distribution(weights.tolist(), self.is_exact)
        return self._probs[context]


def toy_distribution(weights: Sequence[int], is_exact: bool = False) -> np.ndarray:
    """A read-only distribution [V] proportional to integer weights. Raises `ConfigError`: negative or all zero."""
    if not (sum(weights) > 0 and min(weights) >= 0):
        raise ConfigError(f"a distribution needs weights that are not negative and not all zero, got {list(weights)}")
    total = sum(weights)
    exact = [Fraction(weight, total) for weight in weights] if is_exact else []
    probs = np.array(exact, dtype=object) if is_exact else np.array(weights) / total
    probs.flags.writeable = False
    return probs


def distribution_pairs(
    vocab_size: int, is_exact: bool = False, seed: int = 0
) -> dict[str, tuple[ConditionalProbs, tuple[ConditionalProbs, ConditionalProbs]]]:
    """A target distribution and two draft distributions for every edge case, by its name."""

    def random(number: int, zero_share: float = 0.0) -> RandomDistributions:
        return RandomDistributions(vocab_size, 10 * seed + number, is_exact, zero_share)

    low = _constant([1] * (vocab_size - 1) + [0], is_exact) if vocab_size > 1 else random(0)
    high = _constant([0] * (vocab_size - 1) + [1], is_exact)
    return {
        "generic": (random(1), (random(2), random(3))),
        "equal": (random(1), (random(1), random(1))),
        "disjoint": (low, (high, high)),
        "zeros": (random(4, 0.5), (random(5, 0.5), random(6, 0.5))),
        "one-hot target": (_rotating_point(vocab_size, is_exact), (random(2), random(3))),
        "one-hot draft": (random(1), (_rotating_point(vocab_size, is_exact), high)),
    }


def _constant(weights: Sequence[int], is_exact: bool) -> ConditionalProbs:
    probs = toy_distribution(weights, is_exact)
    return lambda context: probs


def _rotating_point(vocab_size: int, is_exact: bool) -> ConditionalProbs:
    """A one-hot distribution whose token changes with the context."""
    probs = [toy_distribution([int(i == token) for i in range(vocab_size)], is_exact) for token in range(vocab_size)]
    return lambda context: probs[(1 + sum(context) + len(context)) % vocab_size]


@dataclass(frozen=True)
class ToyDrafter:
    """Drafts a tree by one sampling scheme; all randomness comes from the random source.

    Selected: the most probable tokens; mixed: one sample of what the selected tokens leave, then the selected; several
    drafters: siblings drawn from `draft_distributions` in turn. All schemes but the last use the first one only.
    Raises `ConfigError`: an unknown sampling scheme, or no draft distribution.
    """

    scheme: str
    shape: Shape
    draft_distributions: tuple[ConditionalProbs, ...]

    def __post_init__(self) -> None:
        if self.scheme not in TOY_SCHEMES:
            raise ConfigError(f"no sampling scheme is called {self.scheme!r}; choose from {', '.join(TOY_SCHEMES)}")
        if not isinstance(self.draft_distributions, tuple) or not self.draft_distributions:
            raise ConfigError(f"draft_distributions must be a tuple, not empty, got {self.draft_distributions!r}")

    def __call__(self, rng: RandomSource) -> ToyTree:
        tree = ToyTree(is_width_fixed=self.shape.is_width_fixed)
        node = 0
        while node < tree.num_nodes:
            width = self.shape.width(tree, node)
            for rank in range(width):
                if self.shape.is_done(tree, node):
                    break
                base_probs, probs, token = self._proposal(tree, node, rank, width)
                if probs is not None:
                    token = rng.pick(tree.num_nodes, probs)
                if token is None:
                    break  # The scheme has no further child.
                tree.add(node, token, probs, base_probs)
            node += 1
        return tree

    def _proposal(
        self, tree: ToyTree, node: int, rank: int, width: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, int | None]:
        """The distribution before and after earlier siblings were taken out, or the selected token."""
        context = tree.contexts[node]
        probs = self.draft_distributions[0](context)
        if self.scheme in (SELECTED, MIXED):
            return self._selected(probs, rank, width)
        if self.scheme == WITHOUT_REPLACEMENT:
            return probs, _without(probs, [tree.tokens[child] for child in tree.children(node)]), None
        if self.scheme == SEVERAL_DRAFTERS:
            probs = self.draft_distributions[rank % len(self.draft_distributions)](context)
        return probs, probs, None

    def _selected(
        self, probs: np.ndarray, rank: int, width: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, int | None]:
        by_value = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
        if self.scheme == MIXED:
            rest = _without(probs, by_value[: width - 1])
            if rest is not None and rank == 0:
                return rest, rest, None
            # With nothing left to sample from, every child is selected.
            rank = rank if rest is None else rank - 1
        return None, None, by_value[rank] if rank < len(probs) else None


def _without(probs: np.ndarray, tokens: Sequence[int]) -> np.ndarray | None:
    """Renormalised without these tokens; None when nothing is left."""
    if not tokens:
        return probs  # The same object: `ToyTree` sees by it that nothing was taken out.
    rest = probs.copy()
    rest[list(tokens)] = 0
    total = rest.sum()
    return rest / total if total > 0 else None
