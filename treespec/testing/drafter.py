"""A toy drafter for every sampling scheme."""

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
    """Drafts a tree by one sampling scheme; all randomness comes from the random source.

    Selected: the most probable tokens; mixed: one sample of what the selected tokens leave, then the selected; several
    drafters: siblings drawn from `draft_distributions` in turn. All schemes but the last use the first one only. Raises
    ConfigError: an unknown sampling scheme, or no draft distribution.
    """

    scheme: str
    shape: Shape
    draft_distributions: tuple[ConditionalProbs, ...]

    def __post_init__(self) -> None:
        if self.scheme not in TOY_SCHEMES:
            raise ConfigError(f"no sampling scheme is called {self.scheme!r}; choose from {', '.join(TOY_SCHEMES)}")
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
        """Add child number `rank`; False when the scheme has no further child."""
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
        if self.scheme == SELECTED:
            return None, None, by_value[rank] if rank < len(probs) else None
        if self.scheme == MIXED:
            rest = _without(probs, by_value[: width - 1])
            if rest is not None and rank == 0:
                return rest, rest, None
            # With nothing left to sample from, every child is selected.
            rank = rank if rest is None else rank - 1
            return None, None, by_value[rank] if rank < len(probs) else None
        if self.scheme == WITHOUT_REPLACEMENT:
            return probs, _without(probs, [tree.tokens[child] for child in tree.children(node)]), None
        if self.scheme == SEVERAL_DRAFTERS:
            probs = self.draft_distributions[rank % len(self.draft_distributions)](context)
        return probs, probs, None


def _without(probs: np.ndarray, tokens: Sequence[int]) -> np.ndarray | None:
    """Renormalised without these tokens; None when nothing is left."""
    if not tokens:
        return probs  # The same object: `ToyTree` sees by it that nothing was taken out.
    rest = probs.copy()
    rest[list(tokens)] = 0
    total = rest.sum()
    return rest / total if total > 0 else None
