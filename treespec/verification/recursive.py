"""Recursive rejection: siblings are judged one after another, each against the residual that the last one left.

One function is most of the literature; the instances differ in the law that each child was drawn from only:
i.i.d. siblings (SpecInfer, Miao et al. 2024, algorithm 2), without replacement (Sequoia, Chen et al. 2024, algorithm
2; RSD, Jeon et al. 2024, algorithm 1), selected (EAGLE-2, Medusa-style top-k, n-grams), several drafters, mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.admission import Admission, AdmittingRule
from treespec.verification.steps import likelihood_ratio, residual_weights
from treespec.verification.walks import walk_down


@dataclass(frozen=True)
class RecursiveRejection(AdmittingRule):
    """Accept child i with probability `min(1, law[x_i] / q_i[x_i])`, else go on with `law = res((law - q_i)+)`.

    Admits every family, shape and way of growing.
    """

    name = "recursive"
    is_lossless = True
    admission = Admission()

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        return walk_down(tree, target_law, chooser, judge_by_rejection)


def judge_by_rejection(tree: VerifiableTree, node: int, law: Any, chooser: Chooser) -> tuple[int | None, Any]:
    """The children of one node, each against what the last one left of the law [V]: see `walk_down`."""
    for child in tree.children(node):
        token, draft_law = tree.token(child), tree.law(child)
        if chooser.flip(child, min(likelihood_ratio(law, draft_law, token), 1)):
            return child, law
        rest = residual_weights(law, draft_law, token)
        total = rest.sum()
        # In exact arithmetic a rejection leaves mass; where rounding leaves none, the law before it stands.
        law = rest / total if total > 0 else law
    return None, law
