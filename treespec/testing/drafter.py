"""A toy drafter of every proposal family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treespec.errors import ConfigError
from treespec.protocols import Chooser
from treespec.testing.laws import ConditionalLaw
from treespec.testing.shapes import Shape
from treespec.testing.trees import ToyTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT

SEVERAL_DRAFTERS = "several_drafters"
TOY_FAMILIES = (SELECTED, IID, WITHOUT_REPLACEMENT, MIXED, SEVERAL_DRAFTERS)


@dataclass(frozen=True)
class ToyDrafter:
    """Drafts a tree of one proposal family, all its chance taken from a chooser.

    Args:
        family: one of TOY_FAMILIES. Selected: the most probable tokens; mixed: one sample of what the selected tokens
            leave, then the selected; several drafters: siblings drawn from `draft_laws` in turn.
        shape: how the tree grows.
        draft_laws: the drafters' conditional laws; all families but the last use the first one only.

    Raises:
        ConfigError: an unknown family, or no draft law.
    """

    family: str
    shape: Shape
    draft_laws: tuple[ConditionalLaw, ...]

    def __post_init__(self) -> None:
        if self.family not in TOY_FAMILIES:
            raise ConfigError(f"no family is called {self.family!r}; choose from {', '.join(TOY_FAMILIES)}")
        if not isinstance(self.draft_laws, tuple) or not self.draft_laws:
            raise ConfigError(f"draft_laws must be a tuple of at least one conditional law, got {self.draft_laws!r}")

    def __call__(self, chooser: Chooser) -> ToyTree:
        tree = ToyTree(is_width_fixed=self.shape.is_width_fixed)
        node = 0
        while node < tree.num_nodes:
            width = self.shape.width(tree, node)
            for rank in range(width):
                if self.shape.is_done(tree, node) or not self._add_child(tree, node, rank, width, chooser):
                    break
            node += 1
        return tree

    def _add_child(self, tree: ToyTree, node: int, rank: int, width: int, chooser: Chooser) -> bool:
        """Add child number `rank`; False when the family has no further child to offer."""
        base_law, law, selected = self._proposal(tree, node, rank, width)
        if law is not None:
            tree.add(node, chooser.pick(tree.num_nodes, law), law, base_law)
        elif selected is not None:
            tree.add(node, selected, None, None)
        return law is not None or selected is not None

    def _proposal(
        self, tree: ToyTree, node: int, rank: int, width: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, int | None]:
        """The law before and after earlier siblings were taken out, or the selected token."""
        context = tree.contexts[node]
        law = self.draft_laws[0](context)
        by_value = sorted(range(len(law)), key=lambda token: (-law[token], token))
        if self.family == SELECTED:
            return None, None, by_value[rank] if rank < len(law) else None
        if self.family == MIXED:
            rest = _without(law, by_value[: width - 1])
            if rest is not None and rank == 0:
                return rest, rest, None
            # With nothing left to sample from, every child is selected.
            rank = rank if rest is None else rank - 1
            return None, None, by_value[rank] if rank < len(law) else None
        if self.family == WITHOUT_REPLACEMENT:
            return law, _without(law, [tree.tokens[child] for child in tree.children(node)]), None
        if self.family == SEVERAL_DRAFTERS:
            law = self.draft_laws[rank % len(self.draft_laws)](context)
        return law, law, None


def _without(law: np.ndarray, tokens: Sequence[int]) -> np.ndarray | None:
    """The law without these tokens, renormalised; None when nothing is left, the law itself when nothing is taken."""
    if not tokens:
        return law
    rest = law.copy()
    rest[list(tokens)] = 0
    total = rest.sum()
    return rest / total if total > 0 else None
