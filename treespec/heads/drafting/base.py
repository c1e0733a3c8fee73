"""What drafters with a head on the target's hidden states have in common: its keys, and what it has yet to read."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from treespec.checks import check_count
from treespec.drafters.base import SessionSource
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.heads.drafting.proposals import head_proposal
from treespec.heads.drafting.unread_features import UnreadFeatures
from treespec.heads.modules.base import DraftHead
from treespec.heads.modules.kv_cache import DraftingCache
from treespec.protocols import Frontier, Proposal, Session, VerifiedStep
from treespec.tree import TreeBatch

Head = TypeVar("Head", bound=DraftHead[Any])


class HeadDrafter(SessionSource, ABC, Generic[Head]):
    """Everything of `Eagle3` and `DFlash` except their passes.

    Sampled children are drawn from the exact distribution that is stored: the softmax of the head's logits after the
    caller's processors, zero outside the draft vocabulary.

    Args:
        head: on any device, in any one dtype; the target's hidden states are copied to it and cast.
        hidden_layers: the target's hidden states that the head fuses, see `HiddenStates`.
        max_length: the longest text that the head reads, in tokens, after which the target decodes alone; None: no end,
            since its positions are computed.

    Raises `ConfigError`: another kind of head, other `hidden_layers` than it fuses, or a wrong `max_length`.
    """

    _head_type: type[Head]

    def __init__(self, head: Head, hidden_layers: Sequence[int], max_length: int | None = None) -> None:
        if not isinstance(head, self._head_type):
            raise ConfigError(
                f"{type(self).__name__} drafts with an {self._head_type.__name__}, got {type(head).__name__}: "
                "load_drafter(folder, model) reads one from files"
            )
        self.head: Head = head
        self.hidden_layers = _check_layers(hidden_layers, head.config.num_features)
        self._max_length = None if max_length is None else check_count("max_length", max_length)

    @property
    def num_weights(self) -> int:
        """What a draft pass reads."""
        return sum(weight.numel() for weight in self.head.parameters())

    def start(self, session: Session) -> None:
        """Keep the prompt's states, which the head reads in the first step.

        Raises `VocabularyMismatchError`: the draft vocabulary has tokens that the target has not.
        """
        head = self.head
        if head.config.vocab_size > session.vocab_size:
            raise VocabularyMismatchError(
                f"the head is for a vocabulary of {head.config.vocab_size} tokens, the target has {session.vocab_size}"
            )
        self._session = session
        self._keys = DraftingCache(head.config.layer, head.config.num_layers, session.history.num_rows, head.embedding)
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
