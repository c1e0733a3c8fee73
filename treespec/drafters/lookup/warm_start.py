"""Warm starts: a recycling table and texts for suffix lookup, made from texts that the model wrote."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from treespec.checks import check_count
from treespec.data.tensor_file import read_tensors, write_tensors
from treespec.drafters.lookup.recycling import TokenRecycling
from treespec.drafters.lookup.recycling_table import (
    PACKED,
    Table,
    count_table,
    pack_ids,
    pack_table,
    unpack_ids,
    unpack_table,
)
from treespec.drafters.lookup.suffix import SuffixLookup
from treespec.drafters.lookup.suffix_store import SuffixStore
from treespec.errors import CheckpointError, ConfigError

FORMAT = "treespec-warm-start-1"


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Initial contents for one model's drafters, which refuse a vocabulary of another size at their first call.

    `texts` are token ids; `about` describes where they come from (model, seed, command).
    """

    table: Table
    texts: Sequence[Tensor]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return len(self.table.candidates)

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(text) for text in self.texts)

    @classmethod
    def from_texts(
        cls, texts: Sequence[Tensor], top: Tensor, vocab_size: int, about: Mapping[str, Any] | None = None
    ) -> Self:
        """Build the table from texts, int64 token ids, none of them empty.

        `top` int64 [T, k] are the model's most likely next tokens at every token of all texts, -1 where unknown.
        Raises `ConfigError`: no texts or an empty one, other types or shapes, ids outside the vocabulary.
        """
        check_count("vocab_size", vocab_size)
        if not isinstance(texts, Sequence) or not texts:
            raise ConfigError(f"texts must be a list of at least one tensor of token ids, got {texts!r}")
        for number, text in enumerate(texts):
            _check_ids(f"text {number}", text, "[n]", 0, vocab_size)
        _check_ids("top", top, "[T, k]", -1, vocab_size)
        num_tokens = sum(map(len, texts))
        is_known = top >= 0
        if len(top) != num_tokens or bool((is_known.any(1) != is_known.all(1)).any()):
            raise ConfigError(f"top must have {num_tokens} rows, one per token, each of ids or of -1 alone")
        return cls(count_table(torch.cat(list(texts)), top, vocab_size), list(texts), about or {})

    def recycling(self) -> TokenRecycling:
        """A `TokenRecycling` that starts with the table."""
        return TokenRecycling(table=self.table)

    def suffix(self) -> SuffixLookup:
        """A `SuffixLookup` whose store starts with the texts."""
        return SuffixLookup(store=SuffixStore([text.numpy() for text in self.texts]))

    def drafters(self) -> list[TokenRecycling | SuffixLookup]:
        """Both, for `TreeSpeculation`."""
        return [self.recycling(), self.suffix()]

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all. Raises `CheckpointError`: it cannot be written."""
        tensors = pack_table(self.table) | {
            "tokens": pack_ids(torch.cat(list(self.texts)), self.vocab_size),
            "lengths": torch.tensor([len(text) for text in self.texts], dtype=torch.int32, device="cpu"),
        }
        metadata = {"vocab_size": str(self.vocab_size), "about": json.dumps(dict(self.about))}
        write_tensors(path, FORMAT, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises `CheckpointError`: see `read_tensors`; or tensors that do not fit."""
        tensors, metadata = read_tensors(path, FORMAT, [*PACKED, "tokens", "lengths"])
        table = unpack_table(tensors, metadata, path)
        tokens = unpack_ids(tensors["tokens"], "tokens", len(table.candidates), path)
        lengths = tensors["lengths"]
        is_listed = lengths.dtype == torch.int32 and lengths.ndim == 1 and bool((lengths > 0).all())
        if tokens.ndim != 1 or bool((tokens < 0).any()) or not is_listed or int(lengths.sum()) != len(tokens):
            raise CheckpointError(f"{path}: tokens must be ids [T] and lengths sum to T, got {list(tokens.shape)}")
        try:
            about = dict(json.loads(metadata.get("about", "{}")))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: about must be a JSON object ({error})") from error
        return cls(table, tokens.split(lengths.tolist()), about)

    @classmethod
    def shipped(cls, name: str) -> Self:
        """A set that comes with treespec, by its model's name without the owner. Raises `CheckpointError`: unknown."""
        sets = {Path(item.name).stem: item for item in files("treespec.data").iterdir() if "safetensors" in item.name}
        found = sets.get(name.rsplit("/", 1)[-1].lower())
        if found is None:
            raise CheckpointError(
                f"no warm start for {name!r} comes with treespec (there are {', '.join(sorted(sets))}): make one with "
                f"treespec warm-up {name} --out FILE.safetensors, and WarmStart.load(FILE)"
            )
        return cls.load(str(found))


def _check_ids(name: str, ids: Tensor, shape: str, least: int, vocab_size: int) -> None:
    """Raises `ConfigError`: not int64 of a shape like "[T, k]", empty, or an id outside [least, vocab_size)."""
    is_tensor = isinstance(ids, Tensor)
    if not is_tensor or ids.dtype != torch.int64 or ids.ndim != len(shape.split(", ")) or not ids.numel():
        got = f"{ids.dtype} {list(ids.shape)}" if is_tensor else type(ids).__name__
        raise ConfigError(f"{name} must be token ids int64 {shape} and not empty, got {got}")
    if not least <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ConfigError(f"{name} holds ids from {int(ids.min())} to {int(ids.max())} in a vocabulary of {vocab_size}")
