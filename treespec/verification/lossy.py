"""Lossy rules: they accept more than any lossless rule can, and the output law is no longer the target's.

Never chosen by default, and admitted nowhere as a substitute: ask for them by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treespec.errors import ConfigError
from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import IID, WITHOUT_REPLACEMENT, Path, TreeBatch, Verdict
from treespec.verification.admission import Admission, check_admission
from treespec.verification.recursive import walk_by_rejection


@dataclass(frozen=True)
class TypicalAcceptance:
    """Accept x if `P[x] > min(epsilon, delta exp(-H(P)))`, H the entropy (Cai et al. 2024, Medusa, section 2.3.1).

    Of all paths whose every token is accepted the longest is kept, among equally long ones the most probable, and the
    next token is drawn from the target. Flips no coins, and asks for the target law of accepted nodes only. Medusa's
    own first token is drawn from the target before drafting, as the root is here. Admits every tree.
    """

    epsilon: float = 0.3
    delta: float = 0.09

    name = "typical_acceptance"
    is_lossless = False
    admission = Admission()

    def __post_init__(self) -> None:
        _check_share("epsilon", self.epsilon)
        _check_share("delta", self.delta)

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        best: tuple[Path, Any] = ((0,), 1)
        open_paths = [best]
        while open_paths:
            path, prob = open_paths.pop(0)
            if (len(path), prob) > (len(best[0]), best[1]):
                best = (path, prob)
            open_paths += [((*path, child), prob * p) for child, p in self._typical(path[-1], tree, target_law)]
        node = best[0][-1]
        return Verdict(best[0], chooser.pick(node, target_law(node)), is_bonus=not tree.children(node))

    def _typical(self, node: int, tree: VerifiableTree, target_law: TargetLaw) -> list[tuple[int, Any]]:
        """The accepted children of a node, with their target probabilities."""
        children = tree.children(node)
        if not children:
            return []
        law = target_law(node)
        threshold = min(self.delta * math.exp(-_entropy(law)), self.epsilon)  # In this order NaN stays NaN.
        probs = [(child, law[tree.token(child)]) for child in children]
        return [(child, prob) for child, prob in probs if prob > threshold]


@dataclass(frozen=True)
class EnsembleVerification:
    """Recursive rejection against the ensemble `w P + (1 - w) q` where children were drawn, against P at leaves.

    Fu et al. 2025 (Fast Large Language Model Collaborative Decoding via Speculation). q is the law that a node's
    children were drawn from, so the output follows the ensemble on accepted paths; `target_weight` 1 is lossless.
    Admits i.i.d. siblings and draws without replacement.
    """

    target_weight: Any = 0.5

    name = "ensemble"
    is_lossless = False
    admission = Admission(frozenset({IID, WITHOUT_REPLACEMENT}))

    def __post_init__(self) -> None:
        _check_share("target_weight", self.target_weight)

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        def ensemble_law(node: int) -> Any:
            children = tree.children(node)
            if not children:
                return target_law(node)
            return self.target_weight * target_law(node) + (1 - self.target_weight) * tree.law(children[0])

        return walk_by_rejection(tree, ensemble_law, chooser)


@dataclass(frozen=True)
class ThresholdAcceptance:
    """The target walk with thresholds below one, as in SGLang's `speculative_accept_threshold_single` and `_acc`.

    Siblings are judged in order: one is accepted if its own `P[x] >= single`, else with the probability that the walk
    finds it at or before this sibling, once the siblings' summed P is divided by `accumulated`. When all are rejected
    draw from P without the children's tokens. With both thresholds 1 it has the target walk's law. Admits every tree.
    """

    single: Any = 0.5
    accumulated: Any = 1

    name = "threshold"
    is_lossless = False
    admission = Admission()

    def __post_init__(self) -> None:
        for name in ("single", "accumulated"):
            _check_share(name, getattr(self, name))
            if getattr(self, name) == 0:
                raise ConfigError(f"{name} must be above 0, got 0")

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        path = [0]
        while True:
            node = path[-1]
            law = target_law(node)
            rest = law.clip(min=0)  # Copies, on every kind of array.
            summed, rejected = 0 * law.sum(), 0 * law.sum()
            for child in tree.children(node):
                # A token that stands twice counts once: the rest holds nothing of it any more.
                token_prob = rest[tree.token(child)] + 0
                summed = summed + token_prob
                rest[tree.token(child)] = 0
                if chooser.flip(child, self._acceptance(token_prob, summed, rejected)):
                    path.append(child)
                    break
                rejected = min(summed / self.accumulated, 1)
            else:
                weights = rest if rest.sum() > 0 else law
                return Verdict(tuple(path), chooser.pick(node, weights), is_bonus=not tree.children(node))

    def _acceptance(self, token_prob: Any, summed: Any, rejected: Any) -> Any:
        """Probability of acceptance given that the earlier siblings, with probability `rejected`, were not found."""
        if token_prob >= self.single:
            return 1
        return (min(summed / self.accumulated, 1) - rejected) / (1 - rejected)


def _entropy(law: Any) -> float:
    """In nats."""
    values = law if isinstance(law, Tensor) else torch.from_numpy(np.array(law, dtype=np.float64))
    return float(torch.special.entr(values).sum())


def _check_share(name: str, value: Any) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must lie in [0, 1], got {value}")
