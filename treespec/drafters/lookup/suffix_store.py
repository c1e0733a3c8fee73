"""The texts of earlier calls for suffix lookup: bounded in size, saved and loaded."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

from treespec.checks import ShowsOptions, check_count
from treespec.data.tensor_file import read_tensors, write_tensors
from treespec.drafters.lookup.suffix_text import SEPARATOR, Occurrences, SuffixText
from treespec.errors import CheckpointError, ConfigError

Ids = Sequence[int] | np.ndarray

FORMAT = "treespec-suffixes-1"
MIN_UNSORTED, UNSORTED_SHARE = 8192, 16
"""All tokens are sorted again when at least 8192 of them, and one in 16, are not: amortised O(1) per token."""
MIN_CAPACITY = 64


class _Record(NamedTuple):
    """A running row's text, from where on it is added, and its length before the call."""

    text: SuffixText
    start: int
    length: int


class SuffixStore(ShowsOptions):
    """Texts that the `SuffixLookup`s with this store draft from, and to which the output of their calls is added.

    When more than `capacity` tokens are kept (about 12 bytes each, with one separator per text), the oldest quarter is
    dropped. A store serves one call of generation at a time, like the drafters that use it. `find` answers in positions
    of its `text`, for endings of at most `max_match` tokens.

    Raises `ConfigError`: a number that is not a positive int or too small, or a text that is not a list of ids.
    """

    def __init__(self, texts: Iterable[Ids] = (), capacity: int = 1 << 19, max_match: int = 16) -> None:
        self.capacity = check_count("capacity", capacity)
        self.max_match = check_count("max_match", max_match)
        self.text = SuffixText()
        self._recorded: list[_Record] = []
        if capacity < MIN_CAPACITY:
            raise ConfigError(f"capacity must be at least {MIN_CAPACITY} tokens, got {capacity}")
        if not isinstance(texts, Iterable):
            raise ConfigError(f"texts must be lists of token ids, got {texts!r}")
        self._extend(texts)

    @property
    def num_tokens(self) -> int:
        """Tokens kept, separators included."""
        self.add_recorded()
        return len(self.text)

    @property
    def max_token(self) -> int:
        """The highest id, -1 in an empty store."""
        return int(self.text.tokens.max())

    @property
    def texts(self) -> list[list[int]]:
        """The texts, oldest first; the oldest may have lost its beginning."""
        self.add_recorded()
        tokens = self.text.tokens
        parts = np.split(tokens, np.flatnonzero(tokens == SEPARATOR))
        return [part[1:].tolist() for part in parts if len(part) > 1]

    def add(self, *texts: Ids) -> None:
        """Add texts. Raises `ConfigError`: one that is not a list of ids; those before it are kept."""
        self._extend(texts)

    def record(self, text: SuffixText, num_before: int) -> None:
        """Add a row's output when its call is over, and `num_before` tokens before it for matches that reach back."""
        self._recorded.append(_Record(text, max(len(text) - num_before, 1), len(text)))

    def add_recorded(self, running: Iterable[SuffixText] = ()) -> None:
        """Add the output of the last call, called when the next one begins and when the store is saved; of a server's
        requests, that of those which are not `running` any more."""
        is_running = set(map(id, running))
        recorded = [record for record in self._recorded if id(record.text) not in is_running]
        self._recorded = [record for record in self._recorded if id(record.text) in is_running]
        self._extend(text.tokens[start:] for text, start, length in recorded if len(text) > length)

    def find(self, ending: Sequence[int]) -> list[Occurrences]:
        """See `SuffixText.find`; the texts of the running call are not in the store yet."""
        return self.text.find(ending[-self.max_match :])

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all. Raises `CheckpointError`: it cannot be written."""
        self.add_recorded()
        metadata = {"capacity": str(self.capacity), "max_match": str(self.max_match)}
        write_tensors(path, FORMAT, {"tokens": torch.from_numpy(self.text.tokens.copy())}, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises `CheckpointError`: see `read_tensors`; or tensors that do not fit."""
        tensors, metadata = read_tensors(path, FORMAT, ["tokens"])
        tokens = tensors["tokens"]
        try:
            store = cls(capacity=int(metadata["capacity"]), max_match=int(metadata["max_match"]))
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path} lacks a store's capacity and max_match ({error!r})") from error
        is_listed = tokens.ndim == 1 and tokens.dtype == torch.int32 and len(tokens) > 0
        if not is_listed or int(tokens.min()) < SEPARATOR or not int(tokens[0]) == int(tokens[-1]) == SEPARATOR:
            got = f"{tokens.dtype} {list(tokens.shape)}"
            raise CheckpointError(f"{path}: tokens must be int32 [T] of ids between {SEPARATOR}s, got {got}")
        store.text = SuffixText(tokens[1:].numpy())
        store._drop_oldest()
        store._extend([])
        return store

    def _extend(self, texts: Iterable[Ids]) -> None:
        """See `add`; never holds more than `capacity` and one text. Sorts when enough tokens are unsorted."""
        for text in texts:
            tokens = _as_ids(text)
            if not len(tokens):
                continue
            self.text.append(tokens[-self.capacity // 2 :])
            self.text.append([SEPARATOR])
            self._drop_oldest()
        num_unsorted = len(self.text) - self.text.num_sorted
        if num_unsorted >= max(MIN_UNSORTED, len(self.text) // UNSORTED_SHARE):
            self.text.sort(self.max_match)

    def _drop_oldest(self) -> None:
        """Drop the oldest tokens beyond the capacity, a quarter of it at a time."""
        if len(self.text) > self.capacity:
            self.text = SuffixText(self.text.tokens[-(self.capacity - self.capacity // 4) :])


def _as_ids(text: Ids) -> np.ndarray:
    """Token ids int32 [T]. Raises `ConfigError`: not a flat list of integers from 0 to 2**31 - 1."""
    try:
        tokens = np.asarray(text)
    except ValueError as error:
        raise ConfigError(f"a text must be a flat list of token ids: {error}") from error
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise ConfigError(f"a text must be a flat list of token ids, got {tokens.dtype} {list(tokens.shape)}")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < 1 << 31:
        raise ConfigError(f"token ids must lie in [0, 2**31), got {int(tokens.min())} to {int(tokens.max())}")
    return tokens.astype(np.int32)
