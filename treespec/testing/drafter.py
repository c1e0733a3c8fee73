"""A toy drafter of every proposal family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treespec.errors import ConfigError
from treespec.protocols import RandomSource
from treespec.testing.distributions import ConditionalProbs
from treespec.testing.shapes import Shape
from treespec.testing.trees import ToyTree
from treespec.tree import IID, MIXED, SELECTED, WITHOUT_REPLACEMENT

SEVERAL_DRAFTERS = "several_drafters"
TOY_SCHEMES = (SELECTED, IID, WITHOUT_REPLACEMENT, MIXED, SEVERAL_DRAFTERS)


@dataclass(frozen=True)
class ToyDrafter:
    """Drafts a tree of one proposal family, all its chance taken from a random source.

    Args:
        family: one of TOY_SCHEMES. Selected: the most probable tokens; mixed: one sample of what the selected tokens
            leave, then the selected; several drafters: siblings drawn from `draft_distributions` in turn.
        shape: how the tree grows.
        draft_distributions: the drafters' conditional distributions; all sampling schemes but the last use the first
            one only.

    Raises:
        ConfigError: an unknown family, or no draft distribution.
    """

    family: str
    shape: Shape
    draft_distributions: tuple[ConditionalProbs, ...]

    def __post_init__(self) -> None:
        if self.family not in TOY_SCHEMES:
            raise ConfigError(f"no family is called {self.family!r}; choose from {', '.join(TOY_SCHEMES)}")
        if not isinstance(self.draft_distributions, tuple) or not self.draft_distributions:
            raise ConfigError(
                f"draft_distributions must be a tuple of at least one conditional distribution, got "
                f"{self.draft_distributions!r}"
            )

    def __call__(self, rng: RandomSource) -> ToyTree:
        tree = ToyTree(is_width_fixed=self.shape.is_width_fixed)
        node = 0
        while node < tree.num_nodes:
            width = self.shape.width(tree, node)
            for rank in range(width):
                if self.shape.is_done(tree, node) or not self._add_child(tree, node, rank, width, rng):
                    break
            node += 1
        return tree

    def _add_child(self, tree: ToyTree, node: int, rank: int, width: int, rng: RandomSource) -> bool:
        """Add child number `rank`; False when the family has no further child to offer."""
        base_probs, probs, selected = self._proposal(tree, node, rank, width)
        if probs is not None:
            tree.add(node, rng.pick(tree.num_nodes, probs), probs, base_probs)
        elif selected is not None:
            tree.add(node, selected, None, None)
        return probs is not None or selected is not None

    def _proposal(
        self, tree: ToyTree, node: int, rank: int, width: int
    ) -> tuple[np.ndarray | None, np.ndarray | None, int | None]:
        """The distribution before and after earlier siblings were taken out, or the selected token."""
        context = tree.contexts[node]
        probs = self.draft_distributions[0](context)
        by_value = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
        if self.family == SELECTED:
            return None, None, by_value[rank] if rank < len(probs) else None
        if self.family == MIXED:
            rest = _without(probs, by_value[: width - 1])
            if rest is not None and rank == 0:
                return rest, rest, None
            # With nothing left to sample from, every child is selected.
            rank = rank if rest is None else rank - 1
            return None, None, by_value[rank] if rank < len(probs) else None
        if self.family == WITHOUT_REPLACEMENT:
            return probs, _without(probs, [tree.tokens[child] for child in tree.children(node)]), None
        if self.family == SEVERAL_DRAFTERS:
            probs = self.draft_distributions[rank % len(self.draft_distributions)](context)
        return probs, probs, None


def _without(probs: np.ndarray, tokens: Sequence[int]) -> np.ndarray | None:
    """The distribution without these tokens, renormalised; None when nothing is left, the distribution itself
    when nothing is taken."""
    if not tokens:
        return probs
    rest = probs.copy()
    rest[list(tokens)] = 0
    total = rest.sum()
    return rest / total if total > 0 else None
