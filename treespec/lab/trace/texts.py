"""The text of tokens, for traces."""

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"
"""What tokenizers decode the first bytes of a character to."""


class Texts:
    """Decodes tokens one by one (labels of nodes), and texts as they grow.

    Without a tokenizer there is no text.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer
        self._known: set[int] = set()
        self._tails: dict[int, tuple[list[int], list[int]]] = {}

    def new(self, tokens: Sequence[int]) -> dict[int, str]:
        """The text of every token that was not asked for before."""
        if self._tokenizer is None:
            return {}
        fresh = dict.fromkeys(token for token in tokens if token not in self._known)
        self._known.update(fresh)
        return {token: self._decode([token]) for token in fresh}

    def pieces(self, row: int, tokens: Sequence[int]) -> list[str]:
        """What every token adds to the row's text: nothing while a character of several tokens is unfinished.

        Decoded after the tokens of the last piece, for spaces may depend on what stands before.
        """
        if self._tokenizer is None:
            return []
        found = []
        for token in tokens:
            before, fresh = self._tails.get(row, ([], []))
            fresh = [*fresh, token]
            head, whole = self._decode(before), self._decode([*before, *fresh])
            if whole.endswith(UNFINISHED) and len(fresh) < 4:
                found.append("")
                self._tails[row] = (before, fresh)
            else:
                found.append(whole[len(head) :])
                self._tails[row] = (fresh, [])
        return found

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)) if tokens else ""
