"""A target's features of the texts it wrote, kept on disk up to a size; the target reads the other texts again.

Axis letters: B texts, T tokens of the longest text, J the target's hidden size, L layers, K candidates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from treespec.data.tensor_file import write_tensors
from treespec.errors import CheckpointError, ConfigError
from treespec.training.features import FeatureReader, Features
from treespec.training.text.texts import Texts

FORMAT = "treespec-features-1"
SHARD_TOKENS = 16384


class Batch(NamedTuple):
    """Texts in rows, padded on the right.

    `tokens` int64 [B, T]; `states` [B, T, L J]; `target_token_ids` int64 and `target_token_probs` float32 [B, T, K],
    the target's most probable next tokens after every token, best first; `is_generated` bool [B, T]: the target
    generated the next token; `is_greedy` bool [B, T]: and it was its most probable token.
    """

    tokens: Tensor
    states: Tensor
    target_token_ids: Tensor
    target_token_probs: Tensor
    is_generated: Tensor
    is_greedy: Tensor


class FeatureSet:
    """Features of texts by the texts' indices.

    Args:
        texts: see `Texts`.
        reader: reads the texts that are not on disk.
        folder: shards of features, named after a hash of their content; existing ones are used again.
        max_length: longer texts are cut.
        max_bytes: the largest size of all shards.
        device: of the batches.
        on_tokens: called with the number of tokens whose features were found or read.

    Raises:
        CheckpointError: a shard is damaged, or cannot be written.
        ConfigError: see `check_texts`.
    """

    def __init__(
        self,
        texts: Texts,
        reader: FeatureReader,
        folder: Path,
        max_length: int,
        max_bytes: float,
        device: torch.device,
        on_tokens: Callable[[int], object] = lambda _: None,
    ) -> None:
        check_texts(texts, reader.vocab_size)
        lengths = texts.lengths.tolist()
        # Of whole texts, so that the same ones are held out with any `max_length`.
        self._hashes = [hashlib.sha256(text.numpy().tobytes()).digest() for text in texts.tokens.split(lengths)]
        generated, greedy = texts.top[:, 0] >= 0, texts.top[:, 0] == texts.tokens.roll(-1)
        self._texts, self._is_generated, self._is_greedy = (
            [part[:max_length] for part in parts.split(lengths)]
            for parts in (texts.tokens, generated, generated & greedy)
        )
        for flags in (*self._is_generated, *self._is_greedy):
            flags[-1:] = False  # The next token was cut off.
        self._reader, self._folder, self._device = reader, folder, device
        self._settings = json.dumps(reader.settings)
        self._cached: dict[int, tuple[Any, int]] = {}  # By text: the open shard and the first row in it.
        self._fill(max_bytes, on_tokens)

    def __len__(self) -> int:
        return len(self._texts)

    def length(self, text: int) -> int:
        """Tokens of a text."""
        return len(self._texts[text])

    def is_trainable(self, text: int) -> bool:
        """Whether the target generated any token that a draft could predict: one after the text's first two."""
        return bool(self._is_generated[text][1:].any())

    def batch(self, texts: Sequence[int]) -> Batch:
        """The batch of some texts."""
        missing = [text for text in texts if text not in self._cached]
        fresh = dict(zip(missing, self._reader.read_all([self._texts[text] for text in missing]), strict=True))
        found = [fresh[text] if text in fresh else self._load(text) for text in texts]
        states, ids, probs = (self._pad(part) for part in zip(*found, strict=True))
        tokens, is_generated, is_greedy = (
            self._pad([part[text] for text in texts]) for part in (self._texts, self._is_generated, self._is_greedy)
        )
        return Batch(tokens, states, ids.long(), probs.float(), is_generated, is_greedy)

    def digest(self) -> str:
        """A short hash of all texts and of how they are read."""
        return self._digest(range(len(self)))

    def held_out(self, count: int) -> list[int]:
        """At most `count` texts and a fifth of all: those with the smallest hashes, so that new texts change few."""
        order = sorted(range(len(self)), key=self._hashes.__getitem__)
        return sorted(order[: min(count, len(self) // 5)])

    def _pad(self, parts: Sequence[Tensor]) -> Tensor:
        return pad_sequence(list(parts), batch_first=True).to(self._device)

    def _digest(self, texts: Sequence[int]) -> str:
        digest = hashlib.sha256(self._settings.encode())
        for text in texts:
            digest.update(f"{self.length(text)}:".encode() + self._texts[text].numpy().tobytes())
        return digest.hexdigest()[:16]

    def _fill(self, max_bytes: float, on_tokens: Callable[[int], object]) -> None:
        """Write the missing shards that fit into `max_bytes`, and open all."""
        num_left = max_bytes / self._reader.bytes_per_token
        for group in _groups([len(text) for text in self._texts]):
            count = sum(map(self.length, group))
            if count > num_left:
                return
            num_left -= count
            path = self._folder / f"features-{self._digest(group)}.safetensors"
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._write(path, group)
            self._open(path, group)
            on_tokens(count)

    def _write(self, path: Path, group: Sequence[int]) -> None:
        features = self._reader.read_all([self._texts[text] for text in group])
        parts = map(torch.cat, zip(*features, strict=True))
        write_tensors(path, FORMAT, dict(zip(Features._fields, parts, strict=True)), {"settings": self._settings})

    def _open(self, path: Path, group: Sequence[int]) -> None:
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): delete it, and it is written again") from error
        start = 0
        for text in group:
            self._cached[text] = file, start
            start += self.length(text)

    def _load(self, text: int) -> Features:
        file, start = self._cached[text]
        return Features(*(file.get_slice(name)[start : start + self.length(text)] for name in Features._fields))


def check_texts(texts: Texts, vocab_size: int) -> None:
    """Check that a model with `vocab_size` tokens can learn from texts.

    Raises:
        ConfigError: no text or an empty one, no probable next tokens, or ids outside the vocabulary.
    """
    if not len(texts.lengths) or int(texts.lengths.min()) < 1:
        raise ConfigError("expected texts of at least one token, got no text or an empty one")
    if texts.top.ndim != 2 or texts.top.shape[1] < 1:
        raise ConfigError(f"texts need probable next tokens after every token, got top {list(texts.top.shape)}")
    lowest, highest = int(texts.tokens.min()), max(int(texts.tokens.max()), int(texts.top.max()))
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise ConfigError(
            f"the model has {vocab_size} tokens, the texts hold the id {wrong}: they are another model's texts"
        )


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of consecutive texts with about `SHARD_TOKENS` tokens together; more texts change the last group only."""
    shards = [(end - length) // SHARD_TOKENS for end, length in zip(accumulate(lengths), lengths, strict=True)]
    return [list(group) for _, group in groupby(range(len(lengths)), key=shards.__getitem__)]
