"""Threshold acceptance: the target walk with thresholds below one (SGLang's acceptance thresholds).

Lossy: the output no longer has the target's distribution, so the rule runs only when it is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.checks import check_share
from treespec.errors import ConfigError
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class ThresholdAcceptance(BaseRule):
    """The target walk with thresholds below one, as in SGLang's `speculative_accept_threshold_single` and `_acc`.

    Siblings are verified in order: one is accepted if its own `P[x] >= single`, else with the probability that the walk
    finds it at or before this sibling, once the siblings' summed P is divided by `accumulated`. When all are rejected
    draw from P without the children's tokens. With both thresholds 1 it has the target walk's distribution. For every
    tree.
    """

    single: Any = 0.5
    accumulated: Any = 1

    name = "threshold"
    is_lossless = False
    requirements = Requirements()

    def __post_init__(self) -> None:
        for name in ("single", "accumulated"):
            check_share(name, getattr(self, name))
            if getattr(self, name) == 0:
                raise ConfigError(f"{name} must be above 0, got 0")

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
