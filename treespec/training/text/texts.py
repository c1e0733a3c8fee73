"""Written texts on disk: one safetensors shard per batch.

Axis letters: N tokens of all texts, C texts, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from treespec.data.tensor_file import read_tensors, write_tensors
from treespec.errors import CheckpointError

FORMAT = "treespec-text-1"
DTYPES = (torch.int32, torch.int64)
"""What ids and lengths in a file may be."""


class Texts(NamedTuple):
    """Written texts, one after the other.

    `tokens` int64 [N]; `lengths` int64 [C], of each text; `top` int64 [N, K], the most probable next tokens after every
    token, -1 where the model was not asked (the template's opening, given prompts, the last token of a text).
    """

    tokens: Tensor
    lengths: Tensor
    top: Tensor


def save_texts(path: Path, texts: Texts, settings: str) -> None:
    """Write one shard, whole or not at all.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors = {name: tensor.to(torch.int32).contiguous() for name, tensor in texts._asdict().items()}
    write_tensors(path, FORMAT, tensors, {"settings": settings})


def read_texts(path: Path, settings: str | None = None) -> Texts:
    """Read one shard.

    Raises:
        CheckpointError: damaged, of another format, written with other settings than the given ones, or tensors that do
            not fit each other: no ints, of other shapes, empty texts, lengths that are not those of all tokens.
    """
    tensors, metadata = read_tensors(path, FORMAT, Texts._fields)
    if settings is not None and metadata.get("settings") != settings:
        raise CheckpointError(
            f"{path} was written with other settings or by another model: give another folder, or delete this one"
        )
    texts = Texts(*(tensors[name] for name in Texts._fields))
    if not _fits(texts):
        kinds = ", ".join(f"{name} {part.dtype} {list(part.shape)}" for name, part in texts._asdict().items())
        raise CheckpointError(f"{path} holds tensors that do not fit each other, or empty texts: {kinds}")
    return Texts(*(part.long() for part in texts))


def read_folder(folder: Path) -> Texts:
    """All shards of a folder, in order.

    Raises:
        CheckpointError: there is none, one is damaged, or see `join`.
    """
    shards = [read_texts(path) for path in sorted(folder.glob("text-*.safetensors"))]
    if not shards:
        raise CheckpointError(f"no text-*.safetensors in {folder}: write some text first (treespec write)")
    return join(shards)


def join(shards: Sequence[Texts]) -> Texts:
    """The texts of several shards, one after the other.

    Raises:
        CheckpointError: shards with different numbers of candidates.
    """
    widths = sorted({shard.top.shape[1] for shard in shards})
    if len(widths) > 1:
        found = " and ".join(map(str, widths))
        raise CheckpointError(
            f"texts with {found} probable next tokens after every token cannot be joined: write all of them with one "
            "num_candidates"
        )
    return Texts(*map(torch.cat, zip(*shards, strict=True)))


def _fits(texts: Texts) -> bool:
    """Whether tensors from a file are what `Texts` says."""
    tokens, lengths, top = texts
    if [part.ndim for part in texts] != [1, 1, 2] or any(part.dtype not in DTYPES for part in texts):
        return False
    return len(top) == len(tokens) == int(lengths.sum()) and not bool((lengths < 1).any())
