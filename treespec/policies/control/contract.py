"""The contract of a control: a policy that chooses at every step what is drafted, if anything."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from treespec.protocols import DraftSource, Session, TreePolicy, VerifiedStep
from treespec.tree import TreeBatch

MOST_AHEAD = 256
"""Tokens that a call is expected to emit yet, unless it may emit fewer: what is read once pays in all their steps."""


class Choice(NamedTuple):
    """A step's draft ("plain", "tree of 16"), its reason, and each candidate's predicted tokens per second of a row."""

    name: str
    reason: str
    tokens_per_second: Mapping[str, float]


class StepControl(ABC):
    """A policy that chooses at every step what is drafted, if anything; `tree="auto"` is one.

    Per step: `choose`; if it says so a proposal by `current`, and `trim`; `learn`. No protocol: their checks are slow.
    """

    current: TreePolicy  # It grows this step's trees.
    choice: Choice  # The last step's.

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """The most nodes of a tree, root included."""

    @abstractmethod
    def begin(self, session: Session, drafter: Any, draft_share: float) -> None:
        """A call begins; what is learned about acceptance and draft times belongs to `drafter`.

        `draft_share`: the weights that a draft pass reads, as a share of the target's; 0 for lookups.
        """

    @abstractmethod
    def choose(self, num_rows: int, context: int, room: int = MOST_AHEAD) -> bool:
        """Choose what the next step drafts; False: nothing.

        `context`: tokens of the longest row; `room`: the most that a row may still emit, 0 where no draft can be.
        """

    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """See `TreePolicy`."""
        return self.current.grow(source, max_depth)

    @abstractmethod
    def trim(self, trees: TreeBatch) -> TreeBatch:
        """The nodes of the drafted trees that are to be verified. What is left out may depend on no drawn token."""

    @abstractmethod
    def learn(self, step: VerifiedStep, draft_ms: float, other_ms: float | None) -> None:
        """Learn from a verified step and its times: drafting, and all else (None: something else was done too)."""
