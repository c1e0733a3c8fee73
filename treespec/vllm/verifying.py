"""Verification of a step's trees: greedy requests all at once, the others under their temperature and filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.protocols import VerificationRule
from treespec.tree import TreeBatch, Verdict
from treespec.verification.dense.scans import Probs, Uniforms
from treespec.verification.dispatch import verify_batch
from treespec.verification.rule import GivenUniforms


def verify_greedily(trees: TreeBatch, best: Int[np.ndarray, "B N"]) -> list[Verdict]:
    """The target walk for all rows, level by level, given the token of the highest score after every node."""
    tokens, parents, depths = trees.tokens.numpy(), trees.parents.numpy(), trees.depths.numpy()
    rows = np.arange(len(tokens))
    last, num_right = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens), dtype=np.int64)
    paths = [last]
    for _ in range(int(depths.max())):
        is_right = (parents == last[:, None]) & (tokens == best[rows, last][:, None])
        has_child = is_right.any(1) & (num_right == len(paths) - 1)
        last = np.where(has_child, is_right.argmax(1), last)
        num_right += has_child
        if not has_child.any():
            break
        paths.append(last)
    is_leaf = ~(parents == last[:, None]).any(1)
    columns = np.stack(paths, 1).tolist()
    following = best[rows, last].tolist()
    return [
        Verdict(tuple(path[: right + 1]), token, leaf)
        for path, right, token, leaf in zip(columns, num_right.tolist(), following, is_leaf.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class FlatProbs:
    """The target's distributions, each computed when a rule asks for it; see `BatchProbs`.

    `numbers` int64 [B, N] are the nodes' rows in the table of scores [M, V], 0 at padding; `as_probs` makes
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
        number = self.numbers[row, node]
        return self.as_probs(self.scores[number].unsqueeze(0), self.requests[row : row + 1])[0]

    def dense(self) -> Probs:
        rows, nodes = self.numbers.shape
        flat = self.as_probs(self.scores[self.numbers.flatten()], self.requests.repeat_interleave(nodes))
        return flat.view(rows, nodes, -1)


def verify_sampled(
    rule: VerificationRule, trees: TreeBatch, target: FlatProbs, coins: Uniforms, draws: Uniforms
) -> list[Verdict]:
    """See `verify_batch`; on a CPU only the nodes that the rule visits get a distribution.

    vLLM binds its threads there and warns when their number is set, which `verify_batch` does.
    """
    if target.device.type != "cpu":
        return verify_batch(rule, trees, target, coins, draws)
    rows = zip(trees.trees, coins.tolist(), draws.tolist(), strict=True)
    return [
        rule.verify(tree, partial(target.probs, row), GivenUniforms(row_coins, row_draws))
        for row, (tree, row_coins, row_draws) in enumerate(rows)
    ]
