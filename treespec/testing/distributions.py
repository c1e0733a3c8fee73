"""Conditional distributions of toy models. An array is numpy float64, or object with Fraction entries."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from treespec.errors import ConfigError
from treespec.testing.trees import Context

ConditionalProbs = Callable[[Context], np.ndarray]
"""Maps a context to the distribution [V] of the next token. Arrays may be shared: nobody writes to them."""


class RandomDistributions:
    """A conditional distribution per context, drawn once from small integer weights by `seed`.

    `is_exact` makes them Fractions instead of float64 (of the same values). `zero_share` is the share of tokens that
    get probability zero; one token always keeps some.
    """

    def __init__(self, vocab_size: int, seed: int, is_exact: bool = False, zero_share: float = 0.0) -> None:
        self.vocab_size, self.seed, self.is_exact, self.zero_share = vocab_size, seed, is_exact, zero_share
        self._probs: dict[Context, np.ndarray] = {}

    def __call__(self, context: Context) -> np.ndarray:
        if context not in self._probs:
            rng = np.random.default_rng([self.seed, len(context), *context])
            weights = rng.integers(1, 20, self.vocab_size)
            weights *= rng.random(self.vocab_size) >= self.zero_share
            weights[rng.integers(self.vocab_size)] += 1
            self._probs[context] = toy_distribution(weights.tolist(), self.is_exact)
        return self._probs[context]


def toy_distribution(weights: Sequence[int], is_exact: bool = False) -> np.ndarray:
    """A read-only distribution [V] proportional to integer weights.

    Raises ConfigError: weights that are negative or sum to zero.
    """
    if not (sum(weights) > 0 and min(weights) >= 0):
        raise ConfigError(f"a distribution needs weights that are not negative and not all zero, got {list(weights)}")
    exact = [Fraction(weight, sum(weights)) for weight in weights]
    probs = np.array(exact, dtype=object) if is_exact else np.array([float(prob) for prob in exact])
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
