"""How trees are shaped, and what they are grown from.

Axis letters: B rows, F new nodes, V vocabulary, K candidates.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from treespec.protocols.steps import VerifiedStep
from treespec.tree import TreeBatch


class Proposal(NamedTuple):
    """Next-token laws of F nodes per row, dense or as candidates.

    Dense: `probs` float [B, F, V] and `tokens` None: an exact law that may be sampled from. Candidates: `tokens` int64
    [B, F, K] in order of decreasing value and `probs` float [B, F, K], estimates that need not sum to one and are zero
    where there is no candidate: children can only be selected.
    """

    probs: Tensor
    tokens: Tensor | None = None


class DraftSource(Protocol):
    """What a policy grows its tree from, one level of expanded nodes at a time."""

    @property
    def root_tokens(self) -> Tensor:
        """int64 [B]."""
        ...

    @property
    def is_sampling(self) -> bool:
        """Whether the caller samples, so that children may be drawn."""
        ...

    @property
    def generator(self) -> torch.Generator:
        """The draft's own random stream."""
        ...

    def expand(self, tokens: Tensor, parents: Tensor) -> Proposal:
        """Next-token laws of F more nodes, computed in one pass.

        Args:
            tokens: int64 [B, F].
            parents: int64 [B, F]: the number of an earlier *expanded* node, counted over all calls since the root, -1
                for the root itself (the first call, F = 1), -2 for padding.
        """
        ...


class TreePolicy(Protocol):
    """How a tree is shaped: which nodes are expanded and which children they get."""

    @property
    def max_nodes(self) -> int:
        """The most nodes of a tree, root included."""
        ...

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """Grow one tree per row, no deeper than `max_depth`."""
        ...


@runtime_checkable
class LearningPolicy(TreePolicy, Protocol):
    """A policy that looks at what became of its trees.

    The engine tells the call's policy, once per step, and a drafter the one that it was built with.
    """

    def commit(self, step: VerifiedStep) -> None:
        """Learn from one verified step."""
        ...
