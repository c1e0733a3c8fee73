"""Verification of the trees of requests that sample, under their temperature and filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch, Verdict
from treespec.verification.dead_ends import verify_cut
from treespec.verification.dense.scans import Probs, Uniforms
from treespec.verification.dispatch import verify_batch
from treespec.verification.rule import GivenUniforms


@dataclass(frozen=True)
class FlatProbs:
    """The target's distributions, each computed when a rule asks for it; see `BatchProbs`.

    `numbers` int64 [B, N] are the nodes' flat rows, those of the table of scores [M, V], 0 at padding; `as_probs` makes
    distributions [m, V] of scores [m, V] under the parameters of requests [m].
    """

    scores: Float[Tensor, "M V"]
    numbers: Int[Tensor, "B N"]
    requests: Int[Tensor, "B"]
    as_probs: Callable[[Tensor, Tensor], Tensor]

    @property
    def vocab_size(self) -> int:
        return self.scores.shape[1]

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def probs(self, row: int, node: int) -> Float[Tensor, " V"]:
        return self.as_probs(self.scores[self.numbers[row, node]].unsqueeze(0), self.requests[row : row + 1])[0]

    def has_probs(self, row: int, node: int) -> bool:
        # The filters keep the best token.
        return bool(self.scores[self.numbers[row, node]].amax().isfinite())

    def dense(self) -> Probs:
        rows, nodes = self.numbers.shape
        flat = self.as_probs(self.scores[self.numbers.flatten()], self.requests.repeat_interleave(nodes))
        return flat.view(rows, nodes, -1)


def verify_sampled(
    rule: VerificationRule, trees: TreeBatch, target: FlatProbs, coins: Uniforms, draws: Uniforms
) -> list[Verdict]:
    """See `verify_batch`, which sets the number of threads: on CPUs vLLM binds them, and nodes are visited singly."""
    if target.device.type != "cpu":
        return verify_batch(rule, trees, target, coins, draws)
    chances = map(GivenUniforms, coins.tolist(), draws.tolist())
    return [
        verify_cut(rule, tree, partial(target.probs, row), partial(target.has_probs, row), chance)
        for row, (tree, chance) in enumerate(zip(trees.trees, chances, strict=True))
    ]
