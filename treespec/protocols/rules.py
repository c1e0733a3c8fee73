"""Verification rules, what they ask of a tree, and where their chance comes from. Axis letter: V vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from treespec.tree import TreeBatch, Verdict


class VerifiableTree(Protocol):
    """What a rule asks of a tree; `TokenTree` is one, exact toys in rational arithmetic are others."""

    @property
    def num_nodes(self) -> int:
        """N, the root included."""
        ...

    def children(self, node: int) -> Sequence[int]:
        """Child ids in verification order."""
        ...

    def token(self, node: int) -> int:
        """The token of a node."""
        ...

    def law(self, node: int) -> Any | None:
        """The law this child was drawn from given what was drawn before it, an array [V]; None for a point mass."""
        ...


TargetLaw = Callable[[int], Any]
"""Maps a node to the target law after it, an array [V], computed on demand and never changed by the rule."""


class Chooser(Protocol):
    """Where a rule's chance comes from: given coins and draws, or an enumeration of all of them."""

    def flip(self, node: int, prob: Any) -> bool:
        """True with probability `prob`; the coin is the one of the node that is judged."""
        ...

    def pick(self, node: int, weights: Any) -> int:
        """An index drawn from unnormalised weights [V]; the draw is the one of the node that is drawn from."""
        ...


class VerificationRule(Protocol):
    """Walks a drafted tree and decides what is kept."""

    @property
    def name(self) -> str:
        """What `verification=` and messages call it."""
        ...

    @property
    def is_lossless(self) -> bool:
        """Whether what it emits has exactly the target's law, whatever the draft."""
        ...

    def check(self, trees: TreeBatch) -> None:
        """Raise `RuleMismatchError` when the trees' proposal laws are not those that the rule admits."""
        ...

    def walk(self, tree: VerifiableTree, target_law: TargetLaw, chooser: Chooser) -> Verdict:
        """Judge one tree, touching only the nodes it needs. Generic over torch, numpy and rational arrays."""
        ...
