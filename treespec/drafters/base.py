"""Common parts of drafters: source for policies, the call's policy, depths that fit, trees by a heap, distributions."""

import sys
from typing import TypeGuard

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import AUTO, ShowsOptions
from treespec.errors import ConfigError
from treespec.policies import BestFirst
from treespec.policies.control.contract import StepControl
from treespec.protocols import Frontier, History, Session, TreePolicy
from treespec.sampling import path_scores
from treespec.tree import ROOT_PARENT, SELECTED, TreeBatch


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


def can_use_heap(policy: TreePolicy) -> TypeGuard[BestFirst]:
    """Whether a heap on the host grows this policy's trees of candidates, up to the order of equal values.

    It saves a dozen operators per level. A subclass of `BestFirst` may grow other trees.
    """
    if not isinstance(policy, BestFirst) or type(policy) is not BestFirst:
        return False
    if policy.children not in (AUTO, SELECTED):
        return False
    return policy.beam is None and policy.branching is None and policy.min_gain == 0


def path_probs(
    session: Session, logits: Float[Tensor, "B F V"], frontier: Frontier | None = None
) -> Float[Tensor, "B F V"]:
    """The distributions in float32 that children are drawn from.

    `logits` are raw, -inf where the draft has no token. `frontier` may be None for processors that look at no path.
    Nodes after which the processors leave none of the draft's tokens get the uniform distribution over these: any
    distribution is lossless.
    """
    read_paths = list if frontier is None else frontier.path_tokens
    scores = path_scores(session.processors, session.history, session.row_ids, logits, read_paths)
    if not session.processors.can_remove_all:
        return scores.softmax(-1, dtype=torch.float32)
    top = scores.amax(-1, keepdim=True)
    is_unknown = (top == -torch.inf) | top.isnan()  # Some warpers make the one from the other.
    # On a CPU reading a few flags is cheaper than copying all scores.
    if scores.device.type != "cpu" or bool(is_unknown.any()):
        scores = torch.where(is_unknown, torch.where(logits == -torch.inf, -torch.inf, logits * 0), scores)
    return scores.softmax(-1, dtype=torch.float32)
