"""Toy trees that grow node by node, with distributions of any arithmetic."""

from dataclasses import dataclass, field

import numpy as np
import torch

from treespec.tree import POINT_MASS, ROOT_PARENT, Path, TokenTree

Context = tuple[int, ...]
"""The tokens after the root."""


@dataclass
class ToyTree:
    """A `VerifiableTree`; `base_distributions[i]` is the distribution before earlier siblings were taken out.

    `draft_probs[i]` is the one after; both are None for a point mass.
    """

    tokens: list[int] = field(default_factory=lambda: [0])
    parents: list[int] = field(default_factory=lambda: [ROOT_PARENT])
    draft_probs: list[np.ndarray | None] = field(default_factory=lambda: [None])
    base_distributions: list[np.ndarray | None] = field(default_factory=lambda: [None])
    contexts: list[Context] = field(default_factory=lambda: [()])
    ranks: list[Path] = field(default_factory=lambda: [()])
    child_lists: list[list[int]] = field(default_factory=lambda: [[]])
    is_width_fixed: bool = True

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        return self.child_lists[node]

    def token(self, node: int) -> int:
        return self.tokens[node]

    def draft_probs_of(self, node: int) -> np.ndarray | None:
        return self.draft_probs[node]

    def add(self, parent: int, token: int, probs: np.ndarray | None, base_probs: np.ndarray | None) -> None:
        self.ranks.append((*self.ranks[parent], len(self.child_lists[parent])))
        self.child_lists[parent].append(self.num_nodes)
        self.child_lists.append([])
        self.contexts.append((*self.contexts[parent], token))
        self.tokens.append(token)
        self.parents.append(parent)
        self.draft_probs.append(probs)
        self.base_distributions.append(base_probs)

    def to_token_tree(self) -> TokenTree:
        """The same tree as the engine would store it, distributions in float64."""
        rows = {id(base): base for base in self.base_distributions if base is not None}
        number = {key: row for row, key in enumerate(rows)}
        index = [POINT_MASS if base is None else number[id(base)] for base in self.base_distributions]
        flags = [base is not None and self.draft_probs[i] is not base for i, base in enumerate(self.base_distributions)]
        # The first of several draws without replacement has the whole distribution, and is one of them all the same.
        flags = [flags[i] or any(flags[j] for j in self._group(i)) for i in range(self.num_nodes)]
        probs = torch.tensor(np.array([row.astype(np.float64) for row in rows.values()])) if rows else None
        return TokenTree(
            tokens=torch.tensor(self.tokens),
            parents=torch.tensor(self.parents),
            draft_probs=probs,
            draft_index=torch.tensor(index) if rows else None,
            is_without_replacement=torch.tensor(flags) if rows else None,
            is_width_fixed=self.is_width_fixed,
        )

    def _group(self, node: int) -> list[int]:
        """Siblings drawn from the same row as `node`."""
        siblings = self.child_lists[self.parents[node]] if node else []
        return [i for i in siblings if self.base_distributions[i] is self.base_distributions[node]]
