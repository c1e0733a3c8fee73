"""A target's features of the texts it wrote, kept on disk up to a size; the target reads the other texts again."""

import hashlib
import json
import random
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

NUM_BUCKETED = 16
"""Batches that are sorted by length together: less padding, and yet another order in every epoch."""


class Batch(NamedTuple):
    """Texts in rows, padded on the right.

    `target_token_ids` and `target_token_probs` are the target's most probable next tokens, best first;
    `is_generated`: the target generated the next token; `is_greedy`: and it was its most probable token.
    """

    tokens: Tensor  # int64 [B, T]
    states: Tensor  # [B, T, Y]
    target_token_ids: Tensor  # int64 [B, T, k]
    target_token_probs: Tensor  # float32 [B, T, k]
    is_generated: Tensor  # bool [B, T]
    is_greedy: Tensor  # bool [B, T]


class FeatureSet:
    """Features of texts, for which `check_texts` holds, by the texts' indices, in batches on `device`.

    Args:
        reader: reads the texts that are not on disk.
        folder: shards of features, named after a hash of their content; existing ones are used again.
        max_length: longer texts are cut.
        max_bytes: the largest size of all shards.
        on_tokens: called with the number of tokens whose features were found or read.

    Raises `CheckpointError`: a shard is damaged, or cannot be written.
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
        lengths = texts.lengths.tolist()
        # Hashes cover whole texts, so that the same ones are held out with any `max_length`.
        self._hashes = [hashlib.sha256(text.numpy().tobytes()).digest() for text in texts.tokens.split(lengths)]
        generated = texts.top[:, 0] >= 0
        greedy = texts.top[:, 0] == texts.tokens.roll(-1)
        self._texts, self._is_generated, self._is_greedy = (
            [part[:max_length] for part in parts.split(lengths)]
            for parts in (texts.tokens, generated, generated & greedy)
        )
        for flags in (*self._is_generated, *self._is_greedy):
            flags[-1:] = False  # The next token was cut off.
        self.lengths = [len(text) for text in self._texts]
        self._reader, self._folder, self._device = reader, folder, device
        self._settings = json.dumps(reader.settings)
        self._cached: dict[int, tuple[Any, int]] = {}  # By text: the open shard and the first row in it.
        self._fill(max_bytes, on_tokens)

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

    def digest(self, texts: Sequence[int] | None = None) -> str:
        """A short hash of the texts, None for all, and of how they are read."""
        digest = hashlib.sha256(self._settings.encode())
        for text in range(len(self._texts)) if texts is None else texts:
            digest.update(f"{self.lengths[text]}:".encode() + self._texts[text].numpy().tobytes())
        return digest.hexdigest()[:16]

    def split(self, num_held_out: int, num_first: int | None = None) -> tuple[list[int], list[int]]:
        """The indices of texts to train on, with a generated part, and of held-out ones; a `ConfigError` for too few.

        Held out are the first `num_first`, or else `num_held_out`: at most a fifth of all texts, those with the
        smallest hashes, so that new texts change few.
        """
        order = sorted(range(len(self._texts)), key=self._hashes.__getitem__)
        held_out = list(range(num_first or 0)) or sorted(order[: min(num_held_out, len(order) // 5)])
        if not held_out:
            raise ConfigError(f"training needs at least 5 texts, got {len(order)}")
        # The first token that a draft can predict is a text's third.
        train = [text for text in sorted(set(order) - set(held_out)) if self._is_generated[text][1:].any()]
        if not train:
            raise ConfigError("the target generated no part of the texts to train on: try a larger max_length")
        return train, held_out

    def _pad(self, parts: Sequence[Tensor]) -> Tensor:
        return pad_sequence(list(parts), batch_first=True).to(self._device)

    def _fill(self, max_bytes: float, on_tokens: Callable[[int], object]) -> None:
        """Write the missing shards that fit into `max_bytes`, and open all."""
        num_left = max_bytes / self._reader.bytes_per_token
        lengths = self.lengths
        shards = [(end - n) // SHARD_TOKENS for end, n in zip(accumulate(lengths), lengths, strict=True)]
        # Consecutive texts, about `SHARD_TOKENS` tokens of them: more texts change the last shard only.
        for _, texts in groupby(range(len(lengths)), key=shards.__getitem__):
            group = list(texts)
            count = sum(lengths[text] for text in group)
            if count > num_left:
                return
            num_left -= count
            path = self._folder / f"features-{self.digest(group)}.safetensors"
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                features = self._reader.read_all([self._texts[text] for text in group])
                parts = dict(zip(Features._fields, map(torch.cat, zip(*features, strict=True)), strict=True))
                write_tensors(path, FORMAT, parts, {"settings": self._settings})
            self._open(path, group)
            on_tokens(count)

    def _open(self, path: Path, group: Sequence[int]) -> None:
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): delete it, and it is written again") from error
        start = 0
        for text in group:
            self._cached[text] = file, start
            start += self.lengths[text]

    def _load(self, text: int) -> Features:
        file, start = self._cached[text]
        return Features(*(file.get_slice(name)[start : start + self.lengths[text]] for name in Features._fields))


def check_texts(texts: Texts, vocab_size: int) -> None:
    """Raise `ConfigError` for no texts or empty ones, no probable next tokens, or ids of at least `vocab_size`."""
    if not len(texts.lengths) or int(texts.lengths.min()) < 1:
        raise ConfigError("expected texts of at least one token, got no text or an empty one")
    if texts.top.ndim != 2 or texts.top.shape[1] < 1:
        raise ConfigError(f"texts need probable next tokens after every token, got top {list(texts.top.shape)}")
    lowest = int(texts.tokens.min())
    highest = max(int(texts.tokens.max()), int(texts.top.max()))
    if lowest < 0 or highest >= vocab_size:
        found = f"the texts hold the id {lowest if lowest < 0 else highest}: they are another model's texts"
        raise ConfigError(f"the model has {vocab_size} tokens, {found}")


class Sampler:
    """Batches of texts of similar length, all texts once per epoch: a function of the seed and the step alone."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths, self._batch_size, self._seed = lengths, batch_size, seed
        self._epoch, self._batches = -1, [[0]]
        self.num_batches = -(-len(lengths) // batch_size)  # Per epoch.

    def batch(self, step: int) -> list[int]:
        """Indices into `lengths` of a step's texts."""
        epoch, number = divmod(step, self.num_batches)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._order(epoch)
        return self._batches[number]

    def _order(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self._seed} {epoch}")
        texts = list(range(len(self._lengths)))
        rng.shuffle(texts)
        size = self._batch_size
        batches = []
        for start in range(0, len(texts), NUM_BUCKETED * size):
            bucket = sorted(texts[start : start + NUM_BUCKETED * size], key=self._lengths.__getitem__)
            batches += [bucket[i : i + size] for i in range(0, len(bucket), size)]
        rng.shuffle(batches)
        return batches
