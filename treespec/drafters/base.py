"""What drafters read of their call: a source for policies, the policy, and the depth that fits the context."""

import sys

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.checks import ShowsOptions
from treespec.errors import ConfigError
from treespec.policies.control.contract import StepControl
from treespec.protocols import History, Session, TreePolicy
from treespec.tree import ROOT_PARENT, TreeBatch


class SessionSource(ShowsOptions):
    """The properties of a `DraftSource` that come from the call's session, and the policy of the step."""

    _session: Session

    @property
    def _policy(self) -> TreePolicy:
        return policy_of_call(self._session)

    @property
    def root_tokens(self) -> Int[Tensor, "B"]:
        return self._session.history.last_tokens

    @property
    def is_sampling(self) -> bool:
        return self._session.is_sampling

    @property
    def generator(self) -> torch.Generator:
        return self._session.generator


def policy_of_call(session: Session) -> TreePolicy:
    """The policy of the call, of a `StepControl` the one that it chose for this step.

    Raises `ConfigError`: the call has no tree policy.
    """
    if session.policy is None:
        raise ConfigError("no tree policy: give one to the call, for example tree=16")
    return session.policy.current if isinstance(session.policy, StepControl) else session.policy


def depth_room(history: History, max_length: int | None) -> int:
    """The greatest depth of a tree whose inner nodes fit into `max_length` tokens; a drafter does not read leaves."""
    if max_length is None:
        return sys.maxsize
    longest = max(length - padding for length, padding in zip(history.lengths, history.num_padding, strict=True))
    return max_length + 1 - longest


def single_nodes(roots: Int[Tensor, "B"]) -> TreeBatch:
    """Trees of a root alone."""
    tokens = roots.unsqueeze(1)
    return TreeBatch(tokens, torch.full_like(tokens, ROOT_PARENT), values=torch.ones_like(tokens, dtype=torch.float32))
