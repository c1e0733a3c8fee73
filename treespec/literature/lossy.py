"""Lossy rules: the output no longer has the target's distribution, so they run only when they are named."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treespec.checks import check_number, check_share
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import IID, WITHOUT_REPLACEMENT, Path, Verdict
from treespec.verification.recursive import verify_by_rejection
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class TypicalAcceptance(BaseRule):
    """Accept x if `P[x] > min(epsilon, delta exp(-H(P)))`, H the entropy (Cai et al. 2024, Medusa, section 2.3.1).

    The longest path whose every token is accepted is kept, the most probable among equally long ones, and the
    next token is drawn from the target. Flips no coins. Medusa's own first token is the root here. For every tree.
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
        values = probs if isinstance(probs, Tensor) else torch.from_numpy(np.array(probs, dtype=np.float64))
        entropy = float(torch.special.entr(values).sum())
        threshold = min(self.delta * math.exp(-entropy), self.epsilon)  # In this order NaN stays NaN.
        child_probs = [(child, probs[tree.token(child)]) for child in children]
        return [(child, prob) for child, prob in child_probs if prob > threshold]


@dataclass(frozen=True)
class ThresholdAcceptance(BaseRule):
    """The target walk with thresholds below one, as in SGLang's `speculative_accept_threshold_single` and `_acc`.

    A sibling is accepted if its own `P[x] >= single`, else with the probability that the walk finds it at or before it,
    once the siblings' summed P is divided by `accumulated`. When all are rejected draw from P without the
    children's tokens. With both thresholds 1 it has the target walk's distribution. For every tree.
    """

    single: Any = 0.5
    accumulated: Any = 1

    name = "threshold"
    is_lossless = False
    requirements = Requirements()

    def __post_init__(self) -> None:
        for name in ("single", "accumulated"):
            check_number(name, getattr(self, name), lambda share: 0 < share <= 1, "lie in (0, 1]")

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, self._verify_children)

    def _verify_children(
        self, tree: VerifiableTree, node: int, probs: Any, rng: RandomSource
    ) -> tuple[int | None, Any]:
        rest = probs.clip(min=0)  # Copies, on every kind of array.
        summed, rejected = 0 * probs.sum(), 0 * probs.sum()
        for child in tree.children(node):
            # A token that two siblings carry counts once: the rest gives it nothing any more.
            token_prob = rest[tree.token(child)] + 0
            summed = summed + token_prob
            rest[tree.token(child)] = 0
            if rng.flip(child, self._acceptance(token_prob, summed, rejected)):
                return child, rest
            rejected = min(summed / self.accumulated, 1)
        return None, rest if rest.sum() > 0 else probs

    def _acceptance(self, token_prob: Any, summed: Any, rejected: Any) -> Any:
        """Probability of acceptance given that the earlier siblings, with probability `rejected`, were not found."""
        if token_prob >= self.single:
            return 1
        return (min(summed / self.accumulated, 1) - rejected) / (1 - rejected)


@dataclass(frozen=True)
class EnsembleVerification(BaseRule):
    """Recursive rejection against the ensemble `w P + (1 - w) q` where children were drawn from q, against P at leaves.

    Fu et al. 2025 (Fast Large Language Model Collaborative Decoding via Speculation). `target_weight` 1 is lossless.
    For i.i.d. siblings and draws without replacement.
    """

    target_weight: Any = 0.5

    name = "ensemble"
    is_lossless = False
    requirements = Requirements(frozenset({IID, WITHOUT_REPLACEMENT}))

    def __post_init__(self) -> None:
        check_share("target_weight", self.target_weight)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        def ensemble_probs(node: int) -> Any:
            children = tree.children(node)
            if not children:
                return target_probs(node)
            return self.target_weight * target_probs(node) + (1 - self.target_weight) * tree.draft_probs_of(children[0])

        return walk_down(tree, ensemble_probs, rng, verify_by_rejection)
