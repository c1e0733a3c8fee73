"""Token verification, the rule of speculative sampling on a chain.

Leviathan et al. 2023 (Fast Inference from Transformers via Speculative Decoding, algorithm 1) and Chen et al. 2023
(Accelerating Large Language Model Decoding with Speculative Sampling, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.recursive import verify_by_rejection
from treespec.verification.rule import BaseRule, Requirements
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class TokenVerification(BaseRule):
    """Accept token i with probability `min(1, P[x_i] / q_i[x_i])`; at the first rejection draw from `res((P - q_i)+)`.

    Recursive rejection on a tree of width one; for chains, selected or sampled.
    """

    name = "token"
    is_lossless = True
    requirements = Requirements(is_chain_only=True)

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        return walk_down(tree, target_probs, rng, verify_by_rejection)
