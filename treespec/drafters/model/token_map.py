"""Texts in the tokens of two tokenizers, and which tokens both have."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

NOT_SHARED = -1
START_TOKEN = 0
"""The token that a draft model reads where it has none of a prompt's tokens."""


class TextCodec(Protocol):
    """A tokenizer as drafters use it: the text of its tokens and the tokens of a text.

    `pieces`: by token id the bytes of an ordinary token, the name of a special one, None for an unused id. `roles`: ids
    of the special tokens that mean the same under any name, such as "bos". `start_ids`: what every text begins with.
    """

    @property
    def pieces(self) -> Sequence[bytes | str | None]: ...

    @property
    def roles(self) -> Mapping[str, int]: ...

    @property
    def start_ids(self) -> Sequence[int]: ...

    def encode(self, text: bytes) -> list[int]:
        """Tokens that spell `text`, as nearly as the vocabulary can; no special ones."""
        ...


def shared_tokens(target: TextCodec, draft: TextCodec) -> Tensor:
    """The draft's id of every token of the target, int64 [V], -1 where there is none; no id occurs twice.

    Tokens match if they spell the same bytes, special ones by name or else by role.
    """
    target_by_piece, draft_by_piece = _by_piece(target), _by_piece(draft)
    ids = [NOT_SHARED] * len(target.pieces)
    for piece, token in target_by_piece.items():
        ids[token] = draft_by_piece.get(piece, NOT_SHARED)
    taken = set(ids)
    for role, token in target.roles.items():
        if ids[token] == NOT_SHARED and draft.roles.get(role, NOT_SHARED) not in taken:
            ids[token] = draft.roles[role]
            taken.add(ids[token])
    return torch.tensor(ids, dtype=torch.int64, device="cpu")


def _by_piece(codec: TextCodec) -> dict[bytes | str, int]:
    """The last token of each spelling: byte-fallback tokens stand first, and are written only in need."""
    return {piece: token for token, piece in enumerate(codec.pieces) if piece}


class Translator:
    """Translates texts of target tokens into the draft model's tokens.

    `one_to_one` int64 [V]: the draft's id of target tokens that are replaced one by one, -1 for the others, whose bytes
    are spelled out and encoded again, run by run.
    """

    def __init__(self, target: TextCodec, draft: TextCodec, one_to_one: Tensor) -> None:
        self._target = target
        self._draft = draft
        self._one_to_one: list[int] = one_to_one.tolist()

    def __call__(self, tokens: Iterable[int]) -> list[int]:
        """The draft's tokens; nothing for a token outside the target's vocabulary."""
        translated: list[int] = []
        for is_replaced, run in groupby(tokens, key=self._is_replaced):
            if is_replaced:
                translated += [self._one_to_one[token] for token in run]
            else:
                translated += self._draft.encode(spell(self._target, run))
        return translated

    def start(self, tokens: Sequence[int]) -> list[int]:
        """A whole prompt, with the draft model's beginning of a text instead of the target's."""
        own = len(self._target.start_ids)
        rest = tokens[own:] if own and list(tokens[:own]) == list(self._target.start_ids) else tokens
        return [*self._draft.start_ids, *self(rest)]

    def _is_replaced(self, token: int) -> bool:
        return token < len(self._one_to_one) and self._one_to_one[token] != NOT_SHARED


def is_special(codec: TextCodec, token: int) -> bool:
    """Whether a token spells no text; heads may have more logits than the tokenizer has tokens."""
    return token < len(codec.pieces) and isinstance(codec.pieces[token], str)


def spell(codec: TextCodec, tokens: Iterable[int]) -> bytes:
    """The bytes of tokens: of special ones their name, of unknown ones nothing."""
    pieces = (codec.pieces[token] if token < len(codec.pieces) else None for token in tokens)
    return b"".join(piece.encode() if isinstance(piece, str) else piece or b"" for piece in pieces)


def known_tokens(tokens: Iterable[int], num_logits: int) -> list[int]:
    """Those that the draft model has: a tokenizer may name more of them than the head has logits."""
    return [token for token in tokens if 0 <= token < num_logits]


def continue_text(codec: TextCodec, before: bytes, text: bytes) -> list[int]:
    """The tokens that spell `text` after `before`; empty if no token starts where `text` starts."""
    tokens = codec.encode(before + text)
    missing = len(text)
    for start in range(len(tokens) - 1, -1, -1):
        missing -= len(spell(codec, tokens[start : start + 1]))
        if missing <= 0:
            return tokens[start:] if spell(codec, tokens[start:]) == text else []
    return []


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of tokens as ids int64 [B, L] and their mask bool [B, L]."""
    width = max(map(len, rows))
    ids = [[0] * (width - len(row)) + list(row) for row in rows]
    mask = [[i >= width - len(row) for i in range(width)] for row in rows]
    return torch.tensor(ids, dtype=torch.int64, device=device), torch.tensor(mask, dtype=torch.bool, device=device)
