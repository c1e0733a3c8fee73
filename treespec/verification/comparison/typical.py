"""Typical acceptance: tokens are kept that the target finds probable enough for its entropy (Cai et al. 2024, Medusa).

Lossy: the output no longer has the target's distribution, so the rule runs only when it is named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treespec.checks import check_share
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Path, Verdict
from treespec.verification.rule import BaseRule, Requirements


@dataclass(frozen=True)
class TypicalAcceptance(BaseRule):
    """Accept x if `P[x] > min(epsilon, delta exp(-H(P)))`, H the entropy (Cai et al. 2024, Medusa, section 2.3.1).

    Of all paths whose every token is accepted the longest is kept, among equally long ones the most probable, and the
    next token is drawn from the target. Flips no coins, and asks for the target distribution of accepted nodes only.
    Medusa's own first token is drawn from the target before drafting, as the root is here. For every tree.
    """

    epsilon: float = 0.3
    delta: float = 0.09

    name = "typical_acceptance"
    is_lossless = False
    requirements = Requirements()

    def __post_init__(self) -> None:
        check_share("epsilon", self.epsilon)
        check_share("delta", self.delta)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        best: tuple[Path, Any] = ((0,), 1)
        open_paths = [best]
        while open_paths:
            path, prob = open_paths.pop(0)
            if (len(path), prob) > (len(best[0]), best[1]):
                best = (path, prob)
            open_paths += [((*path, child), prob * p) for child, p in self._typical(path[-1], tree, target_probs)]
        node = best[0][-1]
        return Verdict(best[0], rng.pick(node, target_probs(node)), is_bonus=not tree.children(node))

    def _typical(self, node: int, tree: VerifiableTree, target_probs: NodeProbs) -> list[tuple[int, Any]]:
        """The accepted children of a node, with their target probabilities."""
        children = tree.children(node)
        if not children:
            return []
        probs = target_probs(node)
        threshold = min(self.delta * math.exp(-_entropy(probs)), self.epsilon)  # In this order NaN stays NaN.
        child_probs = [(child, probs[tree.token(child)]) for child in children]
        return [(child, prob) for child, prob in child_probs if prob > threshold]


def _entropy(probs: Any) -> float:
    """In nats."""
    values = probs if isinstance(probs, Tensor) else torch.from_numpy(np.array(probs, dtype=np.float64))
    return float(torch.special.entr(values).sum())
