"""Token verification, the rule of speculative sampling on a chain.

Leviathan et al. 2023 (Fast Inference from Transformers via Speculative Decoding, algorithm 1) and Chen et al. 2023
(Accelerating Large Language Model Decoding with Speculative Sampling, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import TreeBatch, Verdict
from treespec.verification.admission import Admission, check_admission
from treespec.verification.recursive import walk_by_rejection


@dataclass(frozen=True)
class TokenVerification:
    """Accept token i with probability `min(1, P[x_i] / q_i[x_i])`; at the first rejection draw from `res((P - q_i)+)`.

    Recursive rejection on a tree of width one; admits chains of any family.
    """

    name = "token"
    is_lossless = True
    admission = Admission(is_chain_only=True)

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        return walk_by_rejection(tree, target_law, chooser)
