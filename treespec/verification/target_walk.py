"""Target walk (sample and match): draw from the target and descend while the draw is among the children.

The naive sampling of SpecInfer (Miao et al. 2024), and the rule of greedy tree decoding and of Medusa's and SGLang's
exact modes. On trees of point masses no lossless rule accepts more.
"""

from dataclasses import dataclass

from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import Verdict
from treespec.verification.rule import BaseRule, Requirements


@dataclass(frozen=True)
class TargetWalk(BaseRule):
    """Draw `y ~ P` at the node reached; descend if y is a child, else emit y.

    For every tree: it never asks for a draft distribution. It flips no coins, so it also serves greedy decoding.
    """

    name = "target_walk"
    is_lossless = True
    requirements = Requirements()

    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        path = [0]
        while True:
            node = path[-1]
            token = rng.pick(node, target_probs(node))
            child = next((c for c in tree.children(node) if tree.token(c) == token), None)
            if child is None:
                return Verdict(tuple(path), token, is_bonus=not tree.children(node))
            path.append(child)
