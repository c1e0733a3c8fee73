"""A rule in one file, as a user would add it: it accepts no draft, and draws the next token from the target."""

from treespec.tree import Verdict
from treespec.verification.rule import BaseRule, Requirements


class ToyRule(BaseRule):
    name = "toy"
    is_lossless = True
    requirements = Requirements()

    def verify(self, tree, target_probs, rng):
        return Verdict((0,), rng.pick(0, target_probs(0)), is_bonus=not tree.children(0))
