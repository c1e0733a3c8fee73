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


class Texts(NamedTuple):
    """Written texts, concatenated.

    `tokens` int64 [N]; `lengths` int64 [C], of each text; `top` int64 [N, K], the most probable next tokens after every
    token, -1 where the model did not generate the next token (the template's opening, given prompts, a text's end).
    """

    tokens: Tensor
    lengths: Tensor
    top: Tensor


def save_texts(path: Path, texts: Texts, settings: str) -> None:
    """Write one shard.

    Raises:
        CheckpointError: it cannot be written.
    """
    tensors = {name: tensor.to(torch.int32).contiguous() for name, tensor in texts._asdict().items()}
    write_tensors(path, FORMAT, tensors, {"settings": settings})


def read_texts(path: Path, settings: str | None = None) -> Texts:
    """Read one shard.

    Raises:
        CheckpointError: damaged, of another format, written with other settings than the given ones, or lengths that do
            not fit the tokens.
    """
    tensors, metadata = read_tensors(path, FORMAT, Texts._fields)
    if settings is not None and metadata.get("settings") != settings:
        raise CheckpointError(
            f"{path} was written with other settings or by another model: give another folder, or delete this one"
        )
    texts = Texts(*(tensors[name].long() for name in Texts._fields))
    if [part.ndim for part in texts] != [1, 1, 2] or not len(texts.top) == len(texts.tokens) == int(
        texts.lengths.sum()
    ):
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in texts._asdict().items())
        raise CheckpointError(f"{path} holds tensors that do not fit each other: {shapes}")
    return texts


def read_folder(folder: Path) -> Texts:
    """All shards of a folder, in order.

    Raises:
        CheckpointError: there is no shard, one is damaged, or see `join`.
    """
    shards = [read_texts(path) for path in sorted(folder.glob("text-*.safetensors"))]
    if not shards:
        raise CheckpointError(f"no text-*.safetensors in {folder}: write some text first (treespec write)")
    return join(shards)


def join(shards: Sequence[Texts]) -> Texts:
    """The texts of several shards, concatenated.

    Raises:
        CheckpointError: shards with different numbers of candidates.
    """
    widths = sorted({shard.top.shape[1] for shard in shards})
    if len(widths) > 1:
        found = " and ".join(map(str, widths))
        raise CheckpointError(f"texts with {found} probable next tokens cannot be joined: use one num_candidates")
    return Texts(*map(torch.cat, zip(*shards, strict=True)))
