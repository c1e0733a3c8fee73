"""Which texts a step reads: a function of the seed and the step's number alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

from treespec.errors import ConfigError
from treespec.training.data import FeatureSet

NUM_BUCKETED = 16
"""Batches that are sorted by length together: less padding, and yet another order in every epoch."""


def split_texts(features: FeatureSet, num_held_out: int) -> tuple[list[int], list[int]]:
    """The indices of texts to train on, of which the target generated some part, and of the held-out ones.

    Raises:
        ConfigError: too few texts.
    """
    held_out = features.held_out(num_held_out)
    if not held_out:
        raise ConfigError(f"training needs at least 5 texts, got {len(features)}")
    others = sorted(set(range(len(features))) - set(held_out))
    train = [text for text in others if features.is_trainable(text)]
    if not train:
        raise ConfigError("the target generated no part of the texts to train on: try a larger max_length")
    return train, held_out


class Sampler:
    """Batches of texts of similar length, all texts once per epoch."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths, self._batch_size, self._seed = lengths, batch_size, seed
        self._epoch, self._batches = -1, [[0]]

    @property
    def num_batches(self) -> int:
        """Per epoch."""
        return -(-len(self._lengths) // self._batch_size)

    def batch(self, step: int) -> list[int]:
        """Indices into `lengths` of a step's texts."""
        epoch, number = divmod(step, self.num_batches)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._order(epoch)
        return self._batches[number]

    def _order(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self._seed} {epoch}")
        texts = list(range(len(self._lengths)))
        rng.shuffle(texts)
        size, batches = self._batch_size, []
        for start in range(0, len(texts), NUM_BUCKETED * size):
            bucket = sorted(texts[start : start + NUM_BUCKETED * size], key=self._lengths.__getitem__)
            batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
        rng.shuffle(batches)
        return batches
