"""Which trees a rule admits, and the error that names the rules that would do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from treespec.errors import RuleMismatchError
from treespec.protocols import NodeProbs, RandomSource, VerifiableTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT, TreeBatch, Verdict

ANY_SCHEME = frozenset({SELECTED, IID, WITHOUT_REPLACEMENT, MIXED})


@dataclass(frozen=True)
class Requirements:
    """What a rule asks of a tree: the sampling schemes of its sibling groups, its shape, and how its widths were
    decided."""

    sampling_schemes: frozenset[str] = ANY_SCHEME
    is_chain_only: bool = False
    needs_fixed_width: bool = False
    max_siblings: int | None = None
    max_support: int | None = None

    def reason_against(self, trees: TreeBatch) -> str | None:
        """Why the trees are not admitted, or None. Trees are only read as far as the question needs it."""
        if self.is_chain_only and not trees.is_chain:
            return "it verifies chains, and a node of the tree has several children"
        if self.needs_fixed_width and not trees.is_width_fixed:
            return "it needs every node's width fixed before its first draw (is_width_fixed)"
        foreign = frozenset() if self.sampling_schemes == ANY_SCHEME else trees.sampling_schemes - self.sampling_schemes
        if foreign:
            return f"it admits siblings that are {_listed(self.sampling_schemes)}, and some are {_listed(foreign)}"
        if self.max_siblings is not None and _most_siblings(trees) > self.max_siblings:
            return f"it admits at most {self.max_siblings} siblings, and a node has {_most_siblings(trees)}"
        if self.max_support is not None and _widest_support(trees) > self.max_support:
            return (
                f"it admits draft distributions of at most {self.max_support} tokens, and one gives "
                f"{_widest_support(trees)} "
                "some probability (take `treespec.policies.Truncated(policy)`, or draw from `truncate_probs`)"
            )
        return None


class BaseRule(ABC):
    """A rule that says as data what it admits: every rule of this package.

    Rules from elsewhere need not inherit from it; `VerificationRule` is all that is asked of them.
    """

    name: str
    is_lossless: bool
    requirements: Requirements

    def check(self, trees: TreeBatch) -> None:
        """Raise `RuleMismatchError` for trees that the rule does not admit."""
        check_requirements(self.name, self.requirements, trees)

    @abstractmethod
    def verify(self, tree: VerifiableTree, target_probs: NodeProbs, rng: RandomSource) -> Verdict:
        """Judge one tree, touching only the nodes it needs. Generic over torch, numpy and rational arrays."""


def check_requirements(name: str, requirements: Requirements, trees: TreeBatch) -> None:
    """Raise for trees that the rule called `name` does not admit.

    Raises:
        RuleMismatchError: with the reason and the names of the lossless rules that admit these trees.
    """
    reason_against = requirements.reason_against(trees)
    if reason_against is None:
        return
    from treespec.verification import supporting_rules

    raise RuleMismatchError(
        f"rule '{name}' cannot verify this tree: {reason_against}; "
        f"admissible lossless rules: {', '.join(supporting_rules(trees))}"
    )


def _listed(sampling_schemes: frozenset[str]) -> str:
    return " or ".join(sorted(sampling_schemes)) or "of no family"


def _most_siblings(trees: TreeBatch) -> int:
    return max(len(children) for tree in trees.trees for children in tree.children_lists)


def _widest_support(trees: TreeBatch) -> int:
    """Of the distributions that nodes were drawn from: a batch may hold rows of slots that were never filled."""
    if trees.draft_probs is None or trees.draft_index is None:
        return 0
    used = trees.draft_index[(trees.draft_index >= 0) & (trees.parents >= 0)].unique()
    return int((trees.draft_probs[used] > 0).sum(-1).max()) if len(used) else 0
