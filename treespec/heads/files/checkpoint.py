"""Folders of a draft head's files: whatever is wrong with `config.json` or a tensor ends in a `CheckpointError`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from treespec.errors import CheckpointError
from treespec.heads.modules.layers import LayerConfig

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
NUM_NAMED = 4
"""So many tensors are named in a message, the others counted."""

MAX_SIZE, MAX_COUNT = 2**24, 2**10
"""The bounds of sizes, and of what a head has or does several times: sizes in a file are anyone's, and take memory."""

WEIGHT_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
ID_TENSORS = ("d2t", "t2d", "token_map")
"""The last parts of names of tensors that are no weights."""


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds: its configuration and its tensors, in the file's own names, on the CPU."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a folder.

    Raises:
        CheckpointError: no folder, no or a damaged `config.json`, pickled weights only, a file that is truncated or no
            safetensors file, weights that are not finite or no plain floating-point numbers, a tensor that stands in
            two files.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}: expected one with config.json and *.safetensors")
    config = _read_config(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        found = (
            f"only pickled weights ({', '.join(pickles)}), which can run code and are not opened" if pickles else "none"
        )
        raise CheckpointError(f"{folder} needs *.safetensors files, found {found}: save the tensors as safetensors")
    tensors: dict[str, Tensor] = {}
    for file in files:
        fresh = read_finite_tensors(file)
        if twice := sorted(tensors.keys() & fresh.keys()):
            raise CheckpointError(f"{file} holds tensors that another file of the folder holds too: {_some(twice)}")
        tensors |= fresh
    return Checkpoint(folder, config, tensors)


def positive_int(
    config: Mapping[str, Any], name: str, path: Path, default: int | None = None, limit: float = MAX_SIZE
) -> int:
    """A size from a configuration.

    Raises:
        CheckpointError: missing without a default, no positive int, or one above the limit.
    """
    value = config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{path}: config.json must have a positive int {name}, got {value!r}")
    if value > limit:
        raise CheckpointError(f"{path}: config.json must have a positive int {name} of at most {limit}, got {value}")
    return value


def load_state(module: nn.Module, tensors: Mapping[str, Tensor], layer: LayerConfig, path: Path) -> None:
    """Load the module's whole state from tensors in the files' names, which become the module's parameters.

    Raises:
        CheckpointError: tensors that are missing, unknown or of another shape than the configuration says, all named.
    """
    expected = split_fused(module.state_dict(), layer)
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    wrong = [
        f"{name} expected {list(expected[name].shape)}, got {list(tensors[name].shape)}"
        for name in sorted(expected.keys() & tensors.keys())
        if expected[name].shape != tensors[name].shape
    ]
    kinds = {"missing": missing, "unknown": unknown, "of another shape than config.json says": wrong}
    if problems := [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]:
        raise CheckpointError(f"{path} holds another model than its config.json says; tensors {'; '.join(problems)}")
    module.load_state_dict(fuse_split(tensors), assign=True)


def split_fused(state: Mapping[str, Tensor], layer: LayerConfig) -> dict[str, Tensor]:
    """A module's state with its fused projections split, as files have them."""
    keys = layer.num_key_heads * layer.head_dim
    parts = {
        "qkv_proj": {"q_proj": layer.num_heads * layer.head_dim, "k_proj": keys, "v_proj": keys},
        "gate_up_proj": dict.fromkeys(("gate_proj", "up_proj"), layer.intermediate_size),
    }
    split: dict[str, Tensor] = {}
    for name, tensor in state.items():
        owner, _, kind = name.rpartition(".")
        stem, _, projection = owner.rpartition(".")
        if projection not in parts:
            split[name] = tensor
            continue
        pieces = tensor.split(list(parts[projection].values()))
        split |= {f"{stem}.{part}.{kind}": piece for part, piece in zip(parts[projection], pieces, strict=True)}
    return split


def fuse_split(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `split_fused`; every group must be whole."""
    groups = {"q_proj": ("qkv_proj", "k_proj", "v_proj"), "gate_proj": ("gate_up_proj", "up_proj")}
    fused: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        owner, _, kind = name.rpartition(".")
        stem, _, projection = owner.rpartition(".")
        if projection in groups:
            together, *others = groups[projection]
            fused[f"{stem}.{together}.{kind}"] = torch.cat([tensor, *(tensors[f"{stem}.{p}.{kind}"] for p in others)])
        elif projection not in ("k_proj", "v_proj", "up_proj"):
            fused[name] = tensor
    return fused


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path}: a head is a folder with config.json and *.safetensors") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): it is damaged or no JSON") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


def read_finite_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file, on the CPU.

    Raises:
        CheckpointError: truncated or no safetensors file, or weights that are not finite or no plain floating-point
            numbers.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): it is damaged, truncated or no safetensors file"
        ) from error
    others = [
        f"{name} ({tensor.dtype})"
        for name, tensor in sorted(tensors.items())
        if tensor.dtype not in WEIGHT_DTYPES and name.rpartition(".")[2] not in ID_TENSORS
    ]
    if others:
        raise CheckpointError(f"{path} holds weights that are no plain floating-point numbers: {_some(others)}")
    spoilt = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if spoilt:
        raise CheckpointError(f"{path} holds NaN or infinity in {_some(sorted(spoilt))}: it is damaged")
    return tensors


def _is_finite(tensor: Tensor) -> bool:
    # torch does not ask this of numbers of one byte.
    wide = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    return bool(wide.isfinite().all())


def _some(names: list[str]) -> str:
    rest = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
