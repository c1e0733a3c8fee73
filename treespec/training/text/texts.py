"""Written texts on disk: one safetensors shard per batch, and the fingerprint of the model that wrote them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.data.tensor_file import read_tensors, write_tensors
from treespec.errors import CheckpointError

FORMAT = "treespec-text-1"
NUM_SAMPLES = 16
ORIGIN = ("_name_or_path", "transformers_version")
"""Entries of configurations that differ between copies of one model."""


class Texts(NamedTuple):
    """B written texts of T tokens together, concatenated."""

    tokens: Tensor  # int64 [T]
    lengths: Tensor  # int64 [B], of each text.
    top: Tensor
    """int64 [T, k], the k most probable next tokens after every token, -1 where the model did not generate the next one
    (the template's opening, given prompts, a text's end)."""


def save_texts(path: Path, texts: Texts, settings: str) -> None:
    """Write one shard. Raises `CheckpointError`: it cannot be written."""
    tensors = {name: tensor.to(torch.int32).contiguous() for name, tensor in texts._asdict().items()}
    write_tensors(path, FORMAT, tensors, {"settings": settings})


def read_texts(path: Path, settings: str | None = None) -> Texts:
    """Read one shard. Raises `CheckpointError`: damaged, inconsistent, or written with other settings."""
    tensors, metadata = read_tensors(path, FORMAT, Texts._fields)
    if settings is not None and metadata.get("settings") != settings:
        raise CheckpointError(
            f"{path} was written with other settings or by another model: give another folder, or delete this one"
        )
    texts = Texts(*(tensors[name].long() for name in Texts._fields))
    are_right = [part.ndim for part in texts] == [1, 1, 2]
    if not are_right or not len(texts.top) == len(texts.tokens) == int(texts.lengths.sum()):
        shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in texts._asdict().items())
        raise CheckpointError(f"{path} holds tensors that do not fit each other: {shapes}")
    return texts


def read_folder(folder: Path) -> Texts:
    """All shards of a folder, in order. Raises `CheckpointError`: there is no shard, one is damaged, or see `join`."""
    shards = [read_texts(path) for path in sorted(folder.glob("text-*.safetensors"))]
    if not shards:
        raise CheckpointError(f"no text-*.safetensors in {folder}: write some text first (treespec write)")
    return join(shards)


def join(shards: Sequence[Texts]) -> Texts:
    """The texts of several shards, concatenated; a `CheckpointError` if their numbers of candidates differ."""
    widths = sorted({shard.top.shape[1] for shard in shards})
    if len(widths) > 1:
        found = " and ".join(map(str, widths))
        raise CheckpointError(f"texts with {found} probable next tokens cannot be joined: use one num_candidates")
    return Texts(*map(torch.cat, zip(*shards, strict=True)))


def fingerprint(model: PreTrainedModel) -> str:
    """A short hash of a model's configuration, of the sums of its weights' bits and of some of its weights."""
    digest = hashlib.sha256(json.dumps(_without_origin(model.config.to_dict()), sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        flat = weight.detach().flatten()
        samples = flat[:: max(1, len(flat) // NUM_SAMPLES)].double().tolist()
        # A sum of integers is the same in any order of addition.
        bits = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        digest.update(f"{name} {list(weight.shape)} {int(bits.sum(dtype=torch.int64))} {samples}".encode())
    return digest.hexdigest()[:16]


def _without_origin(entries: Any) -> Any:
    if not isinstance(entries, dict):
        return entries
    return {name: _without_origin(entry) for name, entry in entries.items() if name not in ORIGIN}
