"""Random numbers of requests: a request with a seed draws the same numbers, whatever is drafted for it."""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from treespec.tree import TreeBatch
from treespec.verification.dense.scans import Uniforms

DRAWS_BY_DEPTH = frozenset({"target_walk", "token", "block", "recursive", "traversal"})
"""Rules that draw at most one token per depth."""
BLOCK = 64
"""How many draws of a request are made at a time."""


class Streams:
    """Coins and draws for the trees of a step: from one generator for all requests without a seed, else from the seed.

    Of a request with a seed, a draw belongs to the number of the output token and not to a node, for rules that draw at
    most one token per depth. Under the target walk, which flips no coin, the output then follows from the seed alone.
    """

    def __init__(self, seed: int) -> None:
        self._shared = torch.Generator("cpu").manual_seed(seed)

    def uniforms(
        self, trees: TreeBatch, seeds: Sequence[int | None], lengths: Sequence[int], is_by_depth: bool = True
    ) -> tuple[Uniforms, Uniforms]:
        """Coins and draws, float64 [B, N], for requests that have emitted `lengths` tokens.

        `is_by_depth`: the rule draws at most one token per depth, see `DRAWS_BY_DEPTH`.
        """
        coins, draws = _uniform(self._shared, 2, *trees.tokens.shape)
        for row, (seed, length) in enumerate(zip(seeds, lengths, strict=True)):
            if seed is not None:
                coins[row], draws[row] = _uniform(_generator(seed, length), 2, trees.max_nodes)
                if is_by_depth:
                    draws[row] = _draws(seed, length, trees.depths[row])
        return coins, draws


def _draws(seed: int, length: int, depths: Int[Tensor, "N"]) -> Tensor:
    first, last = length // BLOCK, (length + int(depths.max())) // BLOCK
    numbers = torch.cat([_block(seed, number) for number in range(first, last + 1)])
    return numbers[length + depths - first * BLOCK]


@functools.lru_cache(1024)
def _block(seed: int, number: int) -> Tensor:
    return _uniform(_generator(seed, number, 1), BLOCK)


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=generator, device="cpu")


def _generator(seed: int, *part: int) -> torch.Generator:
    """That of a part of a request's stream."""
    state = np.random.SeedSequence([seed % (1 << 64), *part]).generate_state(1, np.uint64)
    return torch.Generator("cpu").manual_seed(int(state[0] >> np.uint64(1)))
