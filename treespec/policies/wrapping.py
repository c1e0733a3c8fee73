"""Policies around others: what one wraps, and the chain that stands for a tree where only chains can be run."""

from abc import ABC, abstractmethod
from typing import Self

from treespec.policies.chain import Chain
from treespec.policies.control.contract import StepControl
from treespec.protocols import DraftSource, LearningPolicy, TreePolicy, VerifiedStep
from treespec.tree import TreeBatch

CHAIN_LENGTH = 5
"""The most tokens of a chain that replaces a tree."""


class WrappingPolicy(ABC):
    """A policy that changes what another one, `policy`, draws its trees from."""

    policy: TreePolicy

    @property
    def max_nodes(self) -> int:
        return self.policy.max_nodes

    @abstractmethod
    def around(self, policy: TreePolicy) -> Self:
        """The same change around another policy."""

    @abstractmethod
    def grow(self, source: DraftSource, max_depth: int) -> TreeBatch:
        """See `TreePolicy`."""

    def update(self, step: VerifiedStep) -> None:
        """See `LearningPolicy`."""
        if isinstance(self.policy, LearningPolicy):
            self.policy.update(step)


def shape_of(policy: TreePolicy | None) -> TreePolicy | None:
    """The policy that shapes the trees: what another one wraps, or what a `StepControl` chose for this step."""
    if isinstance(policy, StepControl):
        return policy.current
    return shape_of(policy.policy) if isinstance(policy, WrappingPolicy) else policy


def is_chain(policy: TreePolicy | None) -> bool:
    """Whether all its trees are chains."""
    return isinstance(shape_of(policy), Chain)


def as_chain(policy: TreePolicy) -> TreePolicy:
    """The policy for a model that runs chains only: itself if it drafts chains, else a short chain, wrapped alike.

    A `StepControl` stays, see `Session.is_chain_only`.
    """
    if isinstance(policy, WrappingPolicy):
        return policy.around(as_chain(policy.policy))
    is_kept = isinstance(policy, (Chain, StepControl))
    return policy if is_kept else Chain(min(max(policy.max_nodes - 1, 1), CHAIN_LENGTH))
