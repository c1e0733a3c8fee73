"""Which trees a rule admits, and the error that names the rules that would do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from treespec.errors import RuleMismatchError
from treespec.protocols import Chooser, TargetLaw, VerifiableTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TreeBatch, Verdict

ANY_FAMILY = frozenset({SELECTED, IID, WITHOUT_REPLACEMENT, MIXED})


@dataclass(frozen=True)
class Admission:
    """What a rule asks of a tree: the families of its sibling groups, its shape, and how its widths were decided."""

    families: frozenset[str] = ANY_FAMILY
    is_chain_only: bool = False
    needs_fixed_width: bool = False
    max_siblings: int | None = None
    max_support: int | None = None

    def objection(self, trees: TreeBatch) -> str | None:
        """Why the trees are not admitted, or None. Trees are only read as far as the question needs it."""
        if self.is_chain_only and not trees.is_chain:
            return "it verifies chains, and a node of the tree has several children"
        if self.needs_fixed_width and not trees.is_width_fixed:
            return "it needs every node's width fixed before its first draw (is_width_fixed)"
        foreign = frozenset() if self.families == ANY_FAMILY else trees.families - self.families
        if foreign:
            return f"it admits siblings that are {_listed(self.families)}, and some are {_listed(foreign)}"
        if self.max_siblings is not None and _most_siblings(trees) > self.max_siblings:
            return f"it admits at most {self.max_siblings} siblings, and a node has {_most_siblings(trees)}"
        if self.max_support is not None and _widest_support(trees) > self.max_support:
            return (
                f"it admits proposal laws of at most {self.max_support} tokens, and one gives {_widest_support(trees)} "
                "some probability (take `treespec.policies.Truncated(policy)`, or draw from `truncate_law`)"
            )
        return None


class AdmittingRule(ABC):
    """A rule that says as data what it admits: every rule of this package.

    Rules from elsewhere need not inherit from it; `VerificationRule` is all that is asked of them.
    """

    name: str
    is_lossless: bool
    admission: Admission

    def check(self, trees: TreeBatch) -> None:
        """Raise `RuleMismatchError` for trees that the rule does not admit."""
        check_admission(self.name, self.admission, trees)

    @abstractmethod
    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree, touching only the nodes it needs. Generic over torch, numpy and rational arrays."""


def check_admission(name: str, admission: Admission, trees: TreeBatch) -> None:
    """Raise for trees that the rule called `name` does not admit.

    Raises:
        RuleMismatchError: with the reason and the names of the lossless rules that admit these trees.
    """
    objection = admission.objection(trees)
    if objection is None:
        return
    from treespec.verification import admissible_rules

    raise RuleMismatchError(
        f"rule '{name}' cannot verify this tree: {objection}; "
        f"admissible lossless rules: {', '.join(admissible_rules(trees))}"
    )


def _listed(families: frozenset[str]) -> str:
    return " or ".join(sorted(families)) or "of no family"


def _most_siblings(trees: TreeBatch) -> int:
    return max(len(children) for tree in trees.trees for children in tree.children_lists)


def _widest_support(trees: TreeBatch) -> int:
    """Of the laws that nodes were drawn from: a batch may hold rows of slots that were never filled."""
    if trees.laws is None or trees.law_index is None:
        return 0
    used = trees.law_index[(trees.law_index >= 0) & (trees.parents >= 0)].unique()
    return int((trees.laws[used] > 0).sum(-1).max()) if len(used) else 0
