"""Base of drafters with a head on the target's hidden states: the head's keys, the features that it has yet to read,
and the proposals of its logits."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import AUTO, check_count
from treespec.drafters.base import SessionSource, depth_room, path_probs, policy_of_call
from treespec.errors import ConfigError, LogitsError, VocabularyMismatchError
from treespec.heads.drafting.unread_features import UnreadFeatures
from treespec.heads.modules.base import StateReader
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.policies import BestFirst, Chain, Paths
from treespec.policies.best_first import DENSE_DEPTH
from treespec.policies.wrapping import shape_of
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.sampling import NoProcessors
from treespec.tree import SELECTED, TreeBatch

Head = TypeVar("Head", bound=StateReader)


class HeadSource(SessionSource, Generic[Head]):
    """The head of `HeadDrafter`s and of `Assistant`, for texts of at most `max_length` tokens, None: of any length.

    Raises `ConfigError`: another kind of head, or `max_length` is not a positive int.
    """

    _head_type: type[Head]

    def __init__(self, head: Head, max_length: int | None = None) -> None:
        if not isinstance(head, self._head_type):
            raise ConfigError(
                f"{type(self).__name__} drafts with an {self._head_type.__name__}, got {type(head).__name__}: "
                "load_drafter(folder, model) reads one from files; for a loaded assistant see load_drafter"
            )
        self.head: Head = head
        self._max_length = None if max_length is None else check_count("max_length", max_length)

    @property
    def num_weights(self) -> int:
        """The number of weights that a draft pass reads."""
        return sum(weight.numel() for weight in self.head.parameters())

    def start(self, session: Session) -> None:
        """Begin a call. Raises `VocabularyMismatchError`: the head is for tokens that the target has not."""
        size = self.head.config.vocab_size
        if size > session.vocab_size:
            raise VocabularyMismatchError(
                f"the head is for a vocabulary of {size} tokens, the target has {session.vocab_size}: it belongs to "
                "another model"
            )
        self._session = session


class HeadDrafter(HeadSource[Head], ABC):
    """Everything of `Eagle3`, `Mtp` and `DFlash` except their passes.

    Sampled children are drawn from the exact distribution that is stored: the softmax of the head's logits after the
    caller's processors, zero outside the draft vocabulary.

    Args:
        head: on any device, in any one dtype; the target's hidden states are copied to it and cast.
        hidden_layers: the target's hidden states that the head fuses, see `HiddenStates`.
        max_length: the longest text that the head reads, in tokens, after which the target decodes alone; None: no end,
            since its positions are computed.

    Raises `ConfigError`: another kind of head, other `hidden_layers` than it fuses, or a wrong `max_length`.
    """

    def __init__(self, head: Head, hidden_layers: Sequence[int], max_length: int | None = None) -> None:
        super().__init__(head, max_length)
        self.hidden_layers = _check_layers(hidden_layers, head.config.num_features)

    def start(self, session: Session) -> None:
        """Keep the prompt's states, which the head reads in the first step; for errors see `HeadSource`."""
        super().start(session)
        self._keys = DraftingCache(session.history.num_rows, self.head.target_ids.device)
        self._unread = UnreadFeatures(session, self.hidden_layers)

    def update(self, step: VerifiedStep) -> None:
        """Keep the emitted tokens and the states before them for the next step."""
        self._keys.drop_pending()
        self._unread.add(step)

    def select_rows(self, rows: Sequence[int]) -> None:
        self._keys.select_rows(rows)
        self._unread.select_rows(rows)

    @abstractmethod
    def propose(self, max_depth: int) -> TreeBatch:
        """See `Drafter`."""

    def _propose(self, logits: Tensor, frontier: Frontier | None) -> Proposal:
        return head_proposal(self._session, self.head.target_ids, logits, frontier)


def _check_layers(hidden_layers: Sequence[int], num_features: int) -> tuple[int, ...]:
    """Raises `ConfigError`: these are not `num_features` ints."""
    layers = tuple(hidden_layers) if isinstance(hidden_layers, Sequence) else ()
    if len(layers) != num_features or not all(type(layer) is int for layer in layers):
        raise ConfigError(
            f"hidden_layers must be ints, one for each of the {num_features} hidden states fused, got {hidden_layers!r}"
        )
    return layers


def level_depth(session: Session, max_depth: int, max_length: int | None) -> int:
    """The greatest depth of trees whose levels cost a pass each, dense or not; `max_length`: see `depth_room`."""
    depth = min(max_depth, depth_room(session.history, max_length))
    shape = shape_of(policy_of_call(session))
    return min(depth, DENSE_DEPTH) if isinstance(shape, BestFirst) and shape.depth is None else depth


def num_candidates(session: Session) -> int | None:
    """How many of the best tokens after a node are enough; None where whole distributions are needed."""
    policy = policy_of_call(session)
    is_selecting = isinstance(policy, (BestFirst, Chain, Paths)) and policy.children in (AUTO, SELECTED)
    needs_all = session.is_sampling or not session.processors.is_path_free or not is_selecting
    return None if needs_all else max(policy.max_nodes - 1, 1)


def head_proposal(
    session: Session, target_ids: Int[Tensor, "W"], logits: Float[Tensor, "*nodes W"], frontier: Frontier | None
) -> Proposal:
    """The proposal of raw logits for nodes, under the caller's processors: `num_candidates` tokens, or distributions.

    `frontier` may be None for processors that look at no path, see `path_probs`.

    Raises `LogitsError`: the distributions hold NaN; not checked on an accelerator, where values are not read.
    """
    count = num_candidates(session)
    if isinstance(session.processors, NoProcessors):
        probs, ids = logits.softmax(-1, dtype=torch.float32), target_ids
        if count is None:
            return Proposal(_spread(probs, ids, session.vocab_size, 0.0).to(session.device))
    else:
        logits = _spread(logits, target_ids, session.vocab_size, -torch.inf)
        probs, ids = path_probs(session, logits.to(session.device), frontier), None
        if count is None:
            return Proposal(probs)
    top = probs.topk(min(count, probs.shape[-1]), dim=-1)
    # NaN makes a distribution's every probability NaN, and so the sum of all of them.
    if top.values.device.type == "cpu" and math.isnan(top.values.sum()):
        raise LogitsError("the draft head's distributions hold NaN: check the head's weights and its dtype")
    tokens = top.indices if ids is None else ids.take(top.indices)
    return Proposal(top.values.to(session.device), tokens.to(session.device))


def _spread(values: Float[Tensor, "B F W"], ids: Int[Tensor, "W"], vocab_size: int, rest: float) -> Tensor:
    """Values at the target's ids [B, F, V], `rest` at tokens that are not drafted."""
    if len(ids) == vocab_size:
        return values
    full = values.new_full((*values.shape[:-1], vocab_size), rest)
    return full.scatter_(-1, ids.expand_as(values), values)  # A CPU takes half of `index_copy_`'s time.
