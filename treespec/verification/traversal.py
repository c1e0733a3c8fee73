"""Traversal verification: subtrees are verified before their own roots, from the leaves up (Weng et al. 2025).

Block verification for trees. Its invariant is also its proof: `visit(v, a)` accepts inside v's subtree with probability
exactly a, averaged over the drawing of that subtree, and what follows v then has v's target distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import Visit, likelihood_ratio, residual_weights, walk_up

TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Traversal(BaseRule):
    """Enter child i with mass `min(1, a P[x_i] / q_i[x_i])`; after its rejection `w = (a P - q_i)+, S = sum(w)`.

    Then `a = S / (S + (1 - a))` and `P = w / S`; a node whose children were all rejected is accepted with probability
    a. For every tree, however its children were chosen and however it grew; on chains it is block verification.
    """

    name = "traversal"
    is_lossless = True
    requirements = Requirements()

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_up(tree, target_probs, rng, _visits)


@dataclass(frozen=True)
class BlockVerification(Traversal):
    """Traversal on chains (Sun et al. 2025, Block Verification Accelerates Speculative Decoding, algorithm 2).

    It accepts as much as any lossless rule can: with `b_0 = 1, b_i = min(1, b_{i-1} P[x_i] / q[x_i])` it keeps the
    *last* i whose coin is below `h_i = S_i / (S_i + (1 - b_i))`, `S_i = sum((b_i P - q)+)` one token further, or b_i at
    the end of the chain; else 0. Then it draws from `res((b_i P - q)+)`, or from P at the end. For chains, selected or
    sampled.
    """

    name = "block"
    requirements = Requirements(is_chain_only=True)


def _visits(tree: VerifiableTree, node: int, mass: Any, weights: Any) -> Iterator[Visit]:
    scale = mass  # `a P` is `scale * weights`: dividing w by S would be another pass over the vocabulary.
    for child in tree.children(node):
        token = tree.token(child)
        draft_probs = tree.draft_probs_of(child)
        yield Visit(child, min(scale * likelihood_ratio(weights, draft_probs, token), 1))  # min(1, NaN) would be 1.
        rest = residual_weights(scale * weights, draft_probs, token)
        total = rest.sum()
        if total == 0:  # NaN is not: it reaches a decision, which raises.
            # Nothing is left below a rejected child. The root, always accepted, emits from the distribution before.
            mass = 0
            break
        # `total + 1 - mass` would lose the bits of a small total; one over a subnormal one may be infinite.
        mass = total / (total + (1 - mass))
        weights, scale = (rest / total, mass) if total < TINY else (rest, mass / total)
    yield Visit(node, mass, weights)
