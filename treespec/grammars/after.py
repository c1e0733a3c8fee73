"""Grammars that begin only after an end marker, such as that of a thinking block; before it the text is free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from treespec.errors import ConfigError
from treespec.grammars.states import GrammarState

FREE = torch.ones(1 << 19, dtype=torch.bool, device="cpu")
"""The mask of a free text, longer than any vocabulary; the same object everywhere."""
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Marker:
    """The end marker of a free text.

    Attributes:
        is_end: whether a text ends with it, by its last `num_tokens` tokens.
        num_tokens: as many as it can have.
    """

    is_end: Callable[[Tokens], bool]
    num_tokens: int


@dataclass
class AfterState:
    """A `GrammarState` that allows everything up to a marker, and what `state` allows from the next token on."""

    state: GrammarState
    marker: Marker
    last: Tokens = ()
    is_free: bool = True

    def fork(self) -> "AfterState":
        state = self.state if self.is_free else self.state.fork()
        return AfterState(state, self.marker, self.last, self.is_free)

    def advance(self, token: int) -> None:
        if not self.is_free:
            self.state.advance(token)
            return
        self.last = (*self.last, token)[-self.marker.num_tokens :]
        if self.marker.is_end(self.last):
            self.state, self.is_free = self.state.fork(), False

    def mask(self) -> torch.Tensor:
        return FREE if self.is_free else self.state.mask()


def marker_of(after: str | Sequence[int], tokenizer: Any) -> Marker:
    """The marker of a text, which `tokenizer` finds however tokens spell it, or of token ids.

    Raises `ConfigError`: it is empty or of another kind, or a text comes without a tokenizer.
    """
    if isinstance(after, str) and after:
        if not hasattr(tokenizer, "decode"):
            raise ConfigError(f"after={after!r} is a text: give the tokenizer that reads it too, tokenizer=tokenizer")
        # Every token adds a byte; tokenizers such as Llama 2's drop a space before the first one.
        return Marker(partial(_has_text, after, tokenizer), len(after.encode()) + 1)
    ids = tuple(after) if isinstance(after, Sequence) else ()
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise ConfigError(f"after must be a text or token ids that end the free part, got {after!r}")
    return Marker(ids.__eq__, len(ids))


def _has_text(text: str, tokenizer: Any, tokens: Tokens) -> bool:
    return text in tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
