"""Draft models whose tokens are not the target's.

Token-level intersection (TLI; Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding
Algorithms for Heterogeneous Vocabularies"): the draft's distribution is restricted to the shared tokens and
renormalised, q'(x) = q(x) / sum_{y shared} q(y), which is one more draft distribution over the target's vocabulary.
Verification is exact for every draft distribution, so exactness never depends on how well tokens were matched or texts
translated; acceptance does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import ShowsOptions
from treespec.drafters.model.token_map import NOT_SHARED, START_TOKEN, Translator, known_tokens, left_padded
from treespec.errors import ConfigError, VocabularyMismatchError
from treespec.protocols import History, Session
from treespec.tree.transfer import upload


@dataclass
class DraftText:
    """One call's committed text as a draft model reads it, and the way between the vocabularies: here they are one."""

    history: History  # In the draft's tokens.

    def to_draft(self, tokens: Int[Tensor, "B F"]) -> Int[Tensor, "B F"]:
        """Drafted tokens, on the host or on the call's device, in the draft's ids."""
        return tokens

    def to_target(self, logits: Float[Tensor, "B F W"]) -> Float[Tensor, "B F V"]:
        """The draft's logits over the target's vocabulary."""
        return logits

    def append(self, emitted: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Append what was emitted per row; returns it in the draft's tokens."""
        return emitted  # The engine appends to the history that both share, and selects its rows.

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""


class Vocabulary(Protocol):
    """How a draft model's vocabulary relates to the target's."""

    def read(self, session: Session, num_logits: int) -> DraftText:
        """The text of a call, for a draft model whose head gives W = `num_logits` logits."""
        ...


class SameVocabulary:
    """One vocabulary: a token is a token."""

    def read(self, session: Session, num_logits: int) -> DraftText:
        """Raises `VocabularyMismatchError`: the heads have several sizes."""
        if num_logits != session.vocab_size:
            raise VocabularyMismatchError(
                f"the draft model's vocabulary has {num_logits} tokens and the target's {session.vocab_size}. If both "
                "use one tokenizer and only a head is padded, say treespec.hf.make_draft_model(model, "
                "is_same_tokenizer=True); otherwise treespec.hf.make_draft_model(model, tokenizer=the draft model's, "
                "target_tokenizer=the target's)"
            )
        return DraftText(session.history)


class SharedVocabulary(ShowsOptions):
    """The draft model drafts only those tokens that both vocabularies have.

    Args:
        draft_ids: int64 [n], the draft's id of the target's first n tokens, -1 where it has none, see `shared_tokens`;
            `ConfigError` if no token is shared.
        translator: how texts are translated; None drops the tokens that are not shared.
    """

    def __init__(self, draft_ids: Tensor, translator: Translator | None = None) -> None:
        self.draft_ids = draft_ids
        self._translator = translator
        if not bool((draft_ids >= 0).any()):
            raise ConfigError("the two tokenizers share no token: make_draft_model(..., method='re-encoding') may help")

    @classmethod
    def of_one_tokenizer(cls, num_logits: int) -> SharedVocabulary:
        """For a draft model with the target's tokenizer and a padded head: ids that both have mean the same."""
        return cls(torch.arange(num_logits, device="cpu"))

    def read(self, session: Session, num_logits: int) -> DraftText:
        """Raises `VocabularyMismatchError`: all shared tokens are beyond one of the heads."""
        num_missing = session.vocab_size - len(self.draft_ids)
        ids = torch.nn.functional.pad(self.draft_ids, (0, num_missing), value=NOT_SHARED)
        ids = torch.where(ids < num_logits, ids, NOT_SHARED)
        if not bool((ids != NOT_SHARED).any()):
            raise VocabularyMismatchError(
                f"no token that both tokenizers have is among the draft model's {num_logits} logits and the target's "
                f"{session.vocab_size}: do the tokenizers belong to these models?"
            )
        return _OtherText(session, num_logits, ids, self._translator)


class _OtherText(DraftText):
    """A text in other tokens than the target's, of which `draft_ids` int64 [V] are shared."""

    def __init__(self, session: Session, num_logits: int, draft_ids: Tensor, translator: Translator | None) -> None:
        self._num_logits = num_logits
        self._draft_ids = draft_ids.clamp(min=0)
        self._ids, self._is_unknown = upload(session.device, self._draft_ids, draft_ids < 0)
        self._translator = translator
        history = session.history
        self._list: list[int] = draft_ids.tolist() if translator is None else []
        prompts = [self._start(history.tokens(b).tolist()) for b in range(history.num_rows)]
        super().__init__(History(*left_padded(prompts, session.device)))

    def to_draft(self, tokens: Tensor) -> Tensor:
        return (self._draft_ids if tokens.device.type == "cpu" else self._ids)[tokens]

    def to_target(self, logits: Tensor) -> Tensor:
        return logits[..., self._ids].masked_fill(self._is_unknown, -torch.inf)

    def append(self, emitted: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        translated = [self._translate(tokens) for tokens in emitted]
        for row, tokens in enumerate(translated):
            self.history.append(row, tokens)
        return translated

    def select_rows(self, rows: Sequence[int]) -> None:
        self.history.select_rows(rows)

    def _translate(self, tokens: Sequence[int]) -> list[int]:
        ids = [self._list[token] for token in tokens] if self._translator is None else self._translator(tokens)
        return known_tokens(ids, self._num_logits)

    def _start(self, prompt: Sequence[int]) -> list[int]:
        if self._translator is None:
            return self._translate(prompt) or [START_TOKEN]
        return known_tokens(self._translator.start(prompt), self._num_logits) or [START_TOKEN]
