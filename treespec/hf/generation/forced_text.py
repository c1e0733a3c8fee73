"""Text that must follow: a grammar often forces a text without forcing the tokens that spell it."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from torch import Tensor
from transformers import PreTrainedTokenizerBase

Spellings = Sequence[str | None]
"""What every token id adds to a text, in the tokenizer's own spelling; None for added tokens like the end of text."""

MAX_CHOICES = 256
"""Where more tokens are allowed no text is looked for."""

_KNOWN: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, Spellings]] = WeakKeyDictionary()


def spellings_of(tokenizer: PreTrainedTokenizerBase) -> Spellings:
    """The spellings of a tokenizer's vocabulary, read once for each tokenizer and size."""
    size, known = len(tokenizer), _KNOWN.get(tokenizer)
    if known is not None and known[0] == size:
        return known[1]
    added = set(tokenizer.get_added_vocab().values())  # pyright: ignore[reportCallIssue, reportOptionalCall]
    vocabulary = tokenizer.get_vocab()
    spellings: list[str | None] = [None] * (max(vocabulary.values()) + 1)
    for text, token in vocabulary.items():
        spellings[token] = None if token in added else text
    _KNOWN[tokenizer] = (size, spellings)
    return spellings


def forced_token(allowed: Tensor, spellings: Spellings | None) -> int | None:
    """The token that must come, or that spells most of a text that must come; None where there is a choice.

    A text must come if one token begins or continues every other: of `n`, `na`, `name` and `name"` it is `name"`.
    A text that must come may be spelled in other ways too, so a token is only likely where more than one is allowed.
    """
    tokens = allowed.nonzero().flatten().tolist() if int(allowed.sum()) <= MAX_CHOICES else []
    if len(tokens) < 2 or spellings is None or tokens[-1] >= len(spellings):
        return tokens[0] if len(tokens) == 1 else None
    texts = {text: token for token in tokens if (text := spellings[token])}
    if len(texts) < len(tokens):
        return None
    longest = max(texts, key=len)
    for text in sorted(texts, key=len, reverse=True):
        if longest.startswith(text) and all(text.startswith(other) or other.startswith(text) for other in texts):
            return texts[text]
    return None
