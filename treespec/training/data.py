"""A target's features of its own texts, cached on disk within a bound; what does not fit is read by the target again.

Axis letters: B texts, T tokens of the longest of them, J the target's hidden size, L layers, K candidates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    """Texts side by side, padded behind.

    `tokens` int64 [B, T]; `states` [B, T, L J]; `target_token_ids` int64 and `target_token_probs` float32 [B, T, K],
    the target's most probable next tokens after every token, best first; `is_asked` bool [B, T], where the target wrote
    what comes next; `is_best` bool [B, T], where it wrote its most probable token there.
    """

    tokens: Tensor
    states: Tensor
    target_token_ids: Tensor
    target_token_probs: Tensor
    is_asked: Tensor
    is_best: Tensor


@dataclass(frozen=True)
class _Place:
    """Where a text's features lie."""

    shard: int
    start: int


class FeatureSet:
    """Features of texts by number.

    Args:
        texts: see `Texts`.
        reader: reads what is not on disk.
        folder: shards of features, named after what they hold; those that are there are used again.
        max_length: longer texts are cut.
        max_bytes: the shards' bound.
        device: of the batches.
        on_tokens: called with the number of tokens whose features are there or have been read.

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
        # Of whole texts: with another `max_length` the same ones are held out.
        self._hashes = [hashlib.sha256(text.numpy().tobytes()).digest() for text in texts.tokens.split(lengths)]
        asked, best = texts.top[:, 0] >= 0, texts.top[:, 0] == texts.tokens.roll(-1)
        self._texts, self._is_asked, self._is_best = (
            [part[:max_length] for part in parts.split(lengths)] for parts in (texts.tokens, asked, asked & best)
        )
        for is_known in (*self._is_asked, *self._is_best):
            is_known[-1:] = False  # What follows a cut is not there to be judged by.
        self._reader, self._folder, self._device = reader, folder, device
        self._settings = json.dumps(reader.settings)
        self._places: dict[int, _Place] = {}
        self._shards: list[tuple[Path, Any]] = []
        self._fill(max_bytes, on_tokens)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_cached(self) -> int:
        """Texts whose features are on disk."""
        return len(self._places)

    def length(self, text: int) -> int:
        """Tokens of a text."""
        return len(self._texts[text])

    def has_places(self, text: int) -> bool:
        """Whether the target wrote what comes next anywhere behind a text's first token, so that drafts can learn."""
        return bool(self._is_asked[text][1:].any())

    def tokens(self, texts: Sequence[int]) -> Tensor:
        """int64 [N]: the tokens of some texts, one after the other."""
        return torch.cat([self._texts[text] for text in texts])

    def batch(self, texts: Sequence[int]) -> Batch:
        """The batch of some texts.

        Raises:
            CheckpointError: a shard was damaged or taken away meanwhile.
        """
        missing = [text for text in texts if text not in self._places]
        fresh = dict(zip(missing, self._reader.read_all([self._texts[text] for text in missing]), strict=True))
        found = [fresh[text] if text in fresh else self._load(text) for text in texts]
        states, ids, probs = (
            pad_sequence(list(part), batch_first=True).to(self._device) for part in zip(*found, strict=True)
        )
        tokens, is_asked, is_best = (
            pad_sequence([part[text] for text in texts], batch_first=True).to(self._device)
            for part in (self._texts, self._is_asked, self._is_best)
        )
        return Batch(tokens, states, ids.long(), probs.float(), is_asked, is_best)

    def digest(self) -> str:
        """A short hash of all texts and of how they are read."""
        return self._digest(range(len(self)))

    def held_out(self, count: int) -> list[int]:
        """`count` texts, a fifth of all at most: those of the smallest hashes, so few change as texts are added."""
        order = sorted(range(len(self)), key=self._hashes.__getitem__)
        return sorted(order[: min(count, len(self) // 5)])

    def _digest(self, texts: Sequence[int]) -> str:
        digest = hashlib.sha256(self._settings.encode())
        for text in texts:
            digest.update(f"{self.length(text)}:".encode() + self._texts[text].numpy().tobytes())
        return digest.hexdigest()[:16]

    def _fill(self, max_bytes: float, on_tokens: Callable[[int], object]) -> None:
        """Write the shards that are missing and fit, and open all of them."""
        budget = max_bytes / self._reader.bytes_per_token
        for group in _groups([len(text) for text in self._texts]):
            count = sum(map(self.length, group))
            if count > budget:
                return
            budget -= count
            path = self._folder / f"features-{self._digest(group)}.safetensors"
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._write(path, group)
            self._open(path, group, count)
            on_tokens(count)

    def _write(self, path: Path, group: Sequence[int]) -> None:
        """Write one shard, whole or not at all."""
        features = self._reader.read_all([self._texts[text] for text in group])
        parts = {
            name: torch.cat(list(part))
            for name, part in zip(Features._fields, zip(*features, strict=True), strict=True)
        }
        write_tensors(path, FORMAT, parts, {"settings": self._settings})

    def _open(self, path: Path, group: Sequence[int], count: int) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            metadata, names = file.metadata() or {}, set(file.keys())
            sizes = {file.get_slice(name).get_shape()[0] for name in Features._fields if name in names}
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}): it is damaged; delete it to have it anew"
            ) from error
        if metadata.get("format") != FORMAT or metadata.get("settings") != self._settings:
            raise CheckpointError(f"{path} is not what its name says: delete it to have it anew")
        if names != set(Features._fields) or sizes != {count}:
            raise CheckpointError(f"{path} does not hold the features of {count} tokens: delete it to have it anew")
        start = 0
        for text in group:
            self._places[text] = _Place(len(self._shards), start)
            start += self.length(text)
        self._shards.append((path, file))

    def _load(self, text: int) -> Features:
        place, length = self._places[text], self.length(text)
        path, file = self._shards[place.shard]
        parts = [file.get_slice(name)[place.start : place.start + length] for name in Features._fields]
        features = Features(*parts)
        if not (features.states.isfinite().all() and features.top_probs.isfinite().all()):
            raise CheckpointError(f"{path} holds NaN or infinity: it is damaged; delete it to have it anew")
        return features


def check_texts(texts: Texts, vocab_size: int) -> None:
    """Whether a model of so many tokens can be taught by texts.

    Raises:
        ConfigError: no text or an empty one, no probable next tokens beside the tokens, or ids that the model has not.
    """
    if not len(texts.lengths) or int(texts.lengths.min()) < 1:
        raise ConfigError("a text must have a token at least, got none or an empty one")
    if texts.top.ndim != 2 or texts.top.shape[1] < 1:
        raise ConfigError(f"texts need probable next tokens after every token, got top {list(texts.top.shape)}")
    lowest, highest = int(texts.tokens.min()), max(int(texts.tokens.max()), int(texts.top.max()))
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise ConfigError(f"the model has {vocab_size} tokens, the texts one of id {wrong}: another model's")


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Consecutive texts of about `SHARD_TOKENS` tokens together."""
    groups: list[list[int]] = []
    size = SHARD_TOKENS
    for text, length in enumerate(lengths):
        if size >= SHARD_TOKENS:
            groups.append([])
            size = 0
        groups[-1].append(text)
        size += length
    return groups
