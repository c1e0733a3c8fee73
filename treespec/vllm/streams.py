"""Random numbers of requests: a request with a seed draws the same numbers, whatever is drafted for it."""

from collections.abc import Sequence

import numpy as np
import torch

from treespec.tree import TreeBatch
from treespec.verification.dense.scans import Uniforms

WORDS = 4  # Numbers of Philox per value of its counter.


class Streams:
    """Coins and draws for the trees of a step: from one generator for all requests without a seed, else from the seed.

    In a request with a seed, a draw belongs to the number of the output token and not to a node, for rules that draw at
    most one token per depth. Under the target walk, which flips no coin, the output then follows from the seed alone.
    """

    def __init__(self, seed: int) -> None:
        self._shared = _philox(seed, 0)

    def uniforms(
        self, trees: TreeBatch, seeds: Sequence[int | None], lengths: Sequence[int], is_by_depth: bool = True
    ) -> tuple[Uniforms, Uniforms]:
        """Coins and draws, float64 [B, N], after `lengths` tokens; `is_by_depth`: one draw per depth suffices."""
        coins, draws = self._shared.random((2, *trees.tokens.shape))
        for row, (seed, length) in enumerate(zip(seeds, lengths, strict=True)):
            if seed is not None:
                coins[row], draws[row] = _philox(seed, 1, 0, length).random((2, trees.max_nodes))
                if is_by_depth:
                    depths = trees.depths[row].numpy()
                    draws[row] = _philox(seed, 2, length).random(WORDS * (1 + depths.max()))[WORDS * depths]
        return torch.from_numpy(coins), torch.from_numpy(draws)


def _philox(seed: int, part: int, *counter: int) -> np.random.Generator:
    """A part of a seed's numbers, from any value of the counter on without those before it."""
    key = np.array([seed % (1 << 64), part], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[*counter, *[0] * (WORDS - len(counter))]))
