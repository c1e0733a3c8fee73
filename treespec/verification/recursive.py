"""Recursive rejection: siblings are judged one after another, each against the residual that the last one left.

One function is most of the literature; the instances differ in the law that each child was drawn from only:
i.i.d. siblings (SpecInfer, Miao et al. 2024, algorithm 2), without replacement (Sequoia, Chen et al. 2024, algorithm
2; RSD, Jeon et al. 2024, algorithm 1), selected (EAGLE-2, Medusa-style top-k, n-grams), several drafters, mixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import TreeBatch, Verdict
from treespec.verification.admission import Admission, check_admission
from treespec.verification.steps import likelihood_ratio, residual_weights


@dataclass(frozen=True)
class RecursiveRejection:
    """Accept child i with probability `min(1, law[x_i] / q_i[x_i])`, else go on with `law = res((law - q_i)+)`.

    Admits every family, shape and way of growing.
    """

    name = "recursive"
    is_lossless = True
    admission = Admission()

    def check(self, trees: TreeBatch) -> None:
        check_admission(self.name, self.admission, trees)

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree from the root down; asks for the target law of accepted nodes only."""
        return walk_by_rejection(tree, target_law, chooser)


def walk_by_rejection(tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
    path = [0]
    while True:
        node = path[-1]
        law = target_law(node)
        for child in tree.children(node):
            token, draft_law = tree.token(child), tree.law(child)
            if chooser.flip(child, min(likelihood_ratio(law, draft_law, token), 1)):
                path.append(child)
                break
            rest = residual_weights(law, draft_law, token)
            total = rest.sum()
            # In exact arithmetic a rejection leaves mass; where rounding leaves none, the law before it stands.
            law = rest / total if total > 0 else law
        else:
            return Verdict(tuple(path), chooser.pick(node, law), is_bonus=not tree.children(node))
