"""Target walk (sample and match): draw from the target and descend while the draw is among the children.

The naive sampling of SpecInfer (Miao et al. 2024), and the rule of greedy tree decoding and of Medusa's and SGLang's
exact modes. At a node it accepts a child with probability `P(children)`: the same law as recursive rejection on trees
of point masses, where no lossless rule accepts more.
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.admission import Admission, AdmittingRule


@dataclass(frozen=True)
class TargetWalk(AdmittingRule):
    """Draw `y ~ P` at the node reached; descend if y is a child, else emit y.

    Admits every tree, for it never asks for a proposal law; flips no coins, so it also serves greedy decoding.
    """

    name = "target_walk"
    is_lossless = True
    admission = Admission()

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        path = [0]
        while True:
            node = path[-1]
            token = chooser.pick(node, target_law(node))
            child = next((c for c in tree.children(node) if tree.token(c) == token), None)
            if child is None:
                return Verdict(tuple(path), token, is_bonus=not tree.children(node))
            path.append(child)
