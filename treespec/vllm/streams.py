"""Random numbers of requests: a request with a seed draws the same numbers, whatever is drafted for it."""

from collections.abc import Container, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from treespec.tree import TreeBatch
from treespec.verification.dense.scans import Uniforms

DRAWS_BY_DEPTH = frozenset({"target_walk", "token", "block", "recursive", "traversal"})
"""Rules that draw at most one token per depth."""
MORE = 64
"""How many numbers are drawn at a time."""


class Streams:
    """Coins and draws for the trees of a step; one generator without a seed for all, one per request with a seed.

    Of a request with a seed, a draw belongs to the number of the output token and not to a node, for rules that draw at
    most one token per depth. Under the target walk, which flips no coin, the output then follows from the seed alone.
    """

    def __init__(self, seed: int) -> None:
        self._shared = torch.Generator("cpu").manual_seed(seed)
        self._own: dict[str, tuple[torch.Generator, Tensor]] = {}

    def uniforms(
        self,
        trees: TreeBatch,
        requests: Sequence[str],
        seeds: Sequence[int | None],
        lengths: Sequence[int],
        is_by_depth: bool = True,
    ) -> tuple[Uniforms, Uniforms]:
        """Coins and draws, float64 [B, N], for requests that have emitted `lengths` tokens.

        `is_by_depth`: the rule draws at most one token per depth, see `DRAWS_BY_DEPTH`.
        """
        coins, draws = _uniform(self._shared, 2, *trees.tokens.shape)
        for row, (request, seed, length) in enumerate(zip(requests, seeds, lengths, strict=True)):
            if seed is not None:
                step = torch.Generator("cpu").manual_seed(hash_seed(seed, length))
                coins[row], draws[row] = _uniform(step, 2, trees.max_nodes)
                if is_by_depth:
                    draws[row] = self._draws(request, seed, length, trees.depths[row])
        return coins, draws

    def keep(self, requests: Container[str]) -> None:
        """Forget the streams of all other requests."""
        self._own = {name: stream for name, stream in self._own.items() if name in requests}

    def _draws(self, request: str, seed: int, length: int, depths: Int[Tensor, "N"]) -> Tensor:
        if request not in self._own:
            generator = torch.Generator("cpu").manual_seed(seed)
            self._own[request] = generator, _uniform(generator, MORE)
        generator, numbers = self._own[request]
        while len(numbers) <= length + int(depths.max()):
            numbers = torch.cat([numbers, _uniform(generator, MORE)])
        self._own[request] = generator, numbers
        return numbers[length + depths]


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=generator, device="cpu")


def hash_seed(seed: int, number: int) -> int:
    """A seed for a part of a stream."""
    return int(np.random.SeedSequence([seed % (1 << 64), number]).generate_state(1, np.uint64)[0] >> 1)
