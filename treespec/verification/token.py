"""Token verification, the rule of speculative sampling on a chain.

Leviathan et al. 2023 (Fast Inference from Transformers via Speculative Decoding, algorithm 1) and Chen et al. 2023
(Accelerating Large Language Model Decoding with Speculative Sampling, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.admission import Admission, AdmittingRule
from treespec.verification.recursive import judge_by_rejection
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class TokenVerification(AdmittingRule):
    """Accept token i with probability `min(1, P[x_i] / q_i[x_i])`; at the first rejection draw from `res((P - q_i)+)`.

    Recursive rejection on a tree of width one; admits chains of any family.
    """

    name = "token"
    is_lossless = True
    admission = Admission(is_chain_only=True)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        return walk_down(tree, target_law, chooser, judge_by_rejection)
