"""`Spelling`: a transformers tokenizer as a `TextCodec`, so that tokens of different tokenizers can be compared.

Every kind of tokenizer marks spaces and bytes in its own way: byte-level BPE writes bytes as printable characters (the
space as Ġ), SentencePiece writes ▁ and `<0x0A>`, WordPiece marks what *continues* a word with ##. Here every token is
the bytes that it adds to a text.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from treespec.errors import ConfigError

_STRAY_BYTE = re.compile("([\udc80-\udcff])")
"""A lone surrogate, by which the error handler `surrogateescape` decodes a byte that is not UTF-8."""
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class Spelling:
    """Texts and tokens of a transformers tokenizer, as a `TextCodec`. Raises `ConfigError`: not a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not isinstance(tokenizer, PreTrainedTokenizerBase) or not tokenizer.get_vocab():
            raise ConfigError(
                f"expected a transformers tokenizer with a vocabulary, got {type(tokenizer).__name__}: load it with "
                "AutoTokenizer.from_pretrained"
            )
        self._tokenizer = tokenizer
        self.pieces = _pieces(tokenizer)
        roles = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
        self.roles = {role: token for role, token in roles.items() if isinstance(token, int)}
        begin = tokenizer.encode("")[:1]
        self.start_ids = begin if begin == [tokenizer.bos_token_id] else []
        self._ids = {piece: token for token, piece in enumerate(self.pieces) if piece and isinstance(piece, bytes)}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: bytes) -> list[int]:
        """Tokens that spell `text`: the tokenizer's own where these do, else the longest ones that fit.

        What the vocabulary cannot spell is left to the tokenizer (unknown tokens, lower case), stray bytes are dropped.
        """
        ids: list[int] = []
        for part in _STRAY_BYTE.split(text.decode("utf-8", "surrogateescape")):
            if _STRAY_BYTE.match(part):
                ids += self._fit(part.encode("utf-8", "surrogateescape"))
            elif part:
                ids += self._encode_text(part)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        wanted = text.encode()
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        pieces = [self.pieces[token] or b"" for token in ids]
        spelled = b"".join(piece for piece in pieces if isinstance(piece, bytes))
        if pieces[:1] == [b" "] and spelled == b" " + wanted:
            return ids[1:]  # SentencePiece puts a space before every text.
        return ids if spelled == wanted else self._fit(wanted) or ids

    def _fit(self, text: bytes) -> list[int]:
        """The longest tokens that spell `text`, from left to right; none where they do not reach its end."""
        ids = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                return []
            ids.append(self._ids[text[start:end]])
            start = end
        return ids


def _pieces(tokenizer: PreTrainedTokenizerBase) -> list[bytes | str | None]:
    vocabulary = tokenizer.get_vocab()
    spell = _speller(tokenizer)
    pieces: list[bytes | str | None] = [None] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        pieces[index] = spell(token)
    special = set(tokenizer.all_special_ids)
    for index, added in tokenizer.added_tokens_decoder.items():
        pieces[index] = added.content if added.special or index in special else added.content.encode()
    for token in tokenizer.all_special_tokens:
        pieces[vocabulary[token]] = token
    return pieces


def _speller(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bytes]:
    """How the tokenizer's decoder reads the string of a token."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    steps = _steps(json.loads(decoder.__getstate__())) if decoder is not None else []
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _spell_byte_level
    if "WordPiece" in kinds:
        prefix = next(step["prefix"] for step in steps if step["type"] == "WordPiece")
        return lambda token: _spell_word_piece(token, prefix)
    is_sentence_piece = decoder is None or bool(kinds & {"Metaspace", "Replace"})
    return _spell_sentence_piece if is_sentence_piece else str.encode


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    return [inner for step in decoder.get("decoders", []) for inner in _steps(step)] or [decoder]


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_OTHERS)}
"""The characters by which byte-level BPE writes bytes: printable Latin-1 for itself, the others from U+0100 on."""


def _spell_byte_level(token: str) -> bytes:
    known = [_BYTE_OF.get(character) for character in token]
    return token.encode() if None in known else bytes(byte for byte in known if byte is not None)


def _spell_sentence_piece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _spell_word_piece(token: str, prefix: str) -> bytes:
    if token.startswith(prefix):
        return token.removeprefix(prefix).encode()
    is_punctuation = len(token) == 1 and not token.isalnum()
    return token.encode() if is_punctuation else b" " + token.encode()
