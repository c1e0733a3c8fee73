"""Folders of a draft head's files, read and checked; a module's weights by the files' names."""

import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from treespec.data.tensor_file import open_tensors
from treespec.errors import CheckpointError, TreespecWarning
from treespec.heads.files.config import read_config
from treespec.heads.files.unserved import refuse_unserved
from treespec.heads.modules.layers import LayerConfig

MASK_EMBEDDING = "mask_embedding.pt"
"""A file next to others with the embedding of DFlash's mask token, or an object with it as `embedding`."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""Opened by `torch.load(weights_only=True)`, which runs no code, where there is no safetensors file."""
OTHERS = ("optimizer", "rng_state", "scheduler", "training_args", MASK_EMBEDDING)
"""How names of pickles begin that hold something else."""
NUM_NAMED = 4
"""How many tensors a message names; the others are counted."""

SCALE_DTYPES = (torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)
"""Floating-point types of quantised files, whose numbers are not weights by themselves."""
ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ID_TENSORS = ("d2t", "t2d", "token_map")
"""Last parts of the names of tensors that hold ids or flags, not weights."""

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""The modules' fused projections and their parts in files."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a folder: its configuration and its tensors by their names in the file, on the CPU."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a folder with `config.json` and `*.safetensors`, or pickled weights. Raises `CheckpointError`: see below."""
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}: expected one with config.json and *.safetensors")
    config = read_config(folder / "config.json")
    refuse_unserved(folder, config)
    tensors = {}
    for file in weight_files(folder):
        fresh = read_finite_tensors(file, check=partial(refuse_unserved, folder, config))
        if twice := sorted(tensors.keys() & fresh.keys()):
            raise CheckpointError(f"{file} holds tensors that another file of the folder holds too: {some(twice)}")
        tensors |= fresh
    if (folder / MASK_EMBEDDING).is_file():
        tensors["mask_embedding"] = _read_mask_embedding(folder / MASK_EMBEDDING, config)
    return Checkpoint(folder, config, tensors)


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, else its pickled ones. Raises `CheckpointError`: there are none of either."""
    files = sorted(folder.glob("*.safetensors")) or sorted(
        file for file in folder.iterdir() if file.suffix in PICKLES and not file.name.startswith(OTHERS)
    )
    if not files:
        raise CheckpointError(f"{folder} needs *.safetensors files, found none")
    return files


def read_finite_tensors(
    path: Path, names: Iterable[str] | None = None, check: Callable[[Iterable[str]], object] = list
) -> dict[str, Tensor]:
    """A file's tensors, or those of these names, on the CPU; `check` gets their names first.

    Raises `CheckpointError`: damaged, a pickle of more than tensors, or a weight is not a finite float.
    """
    if path.suffix in PICKLES:
        pickled = _read_pickle(path)
        check(pickled)
        tensors = {name: pickled[name] for name in sorted(pickled if names is None else names)}
    else:
        with open_tensors(path) as file:
            check(file.keys())
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys() if names is None else names)}
    check_weights(path, tensors)
    return tensors


def check_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises `CheckpointError`: a tensor that holds no ids is not of finite floats."""
    others = [
        f"{name} ({tensor.dtype})"
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] not in ID_TENSORS
        and (not tensor.is_floating_point() or tensor.dtype in SCALE_DTYPES)
    ]
    if others:
        raise CheckpointError(f"{path} holds weights that are not plain floating-point numbers: {some(others)}")
    # torch has no isfinite for float8.
    wide = {name: t.float() if t.is_floating_point() and t.itemsize == 1 else t for name, t in tensors.items()}
    if spoilt := [name for name, tensor in wide.items() if not tensor.isfinite().all()]:
        raise CheckpointError(f"{path} holds NaN or infinity in {some(spoilt)}: it is damaged")


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickle, of which nothing but tensors is read; a warning says how to convert it."""
    found = _unpickle(path)
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise CheckpointError(f"{path} must hold tensors by name, found {type(found).__name__}")
    convert = "save_file({name: tensor.clone() for name, tensor in weights.items()}, 'model.safetensors')"
    hint = f"is a pickle: convert it once by weights = torch.load(file, weights_only=True); {convert}"
    warnings.warn(f"{path.name} {hint}", TreespecWarning, stacklevel=2)
    return {str(name): tensor.contiguous() for name, tensor in found.items()}


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        problem = f"is damaged, or holds more than tensors, which is not opened: {reason}"
        raise CheckpointError(f"{path} {problem}") from error


def _read_mask_embedding(path: Path, config: Mapping[str, Any]) -> Tensor:
    """The embedding [H]. Raises `CheckpointError`: it is none, or that of another token."""
    found = _unpickle(path)
    if isinstance(found, Mapping):
        token = (config.get("dflash_config") or config).get("mask_token_id")
        if found.get("mask_token_id", token) != token:
            own = found["mask_token_id"]
            raise CheckpointError(f"{path} is of the mask token {own}, {path.with_name('config.json')} says {token}")
        found = found.get("embedding")
    if not isinstance(found, Tensor) or not found.is_floating_point() or not found.isfinite().all():
        raise CheckpointError(f"{path} must hold an embedding of finite numbers, or an object with it as 'embedding'")
    return found.reshape(-1)


def load_state(module: nn.Module, tensors: Mapping[str, Tensor], layer: LayerConfig, path: Path) -> None:
    """Load the module's whole state from tensors by the files' names; the tensors become its parameters.

    Raises `CheckpointError`: tensors that are missing, unknown or of another shape than the configuration's, all named.
    """
    expected = split_fused(module.state_dict(), layer)
    missing = sorted(expected.keys() - tensors.keys())
    unknown = sorted(tensors.keys() - expected.keys())
    shapes = {name: (expected[name].shape, tensors[name].shape) for name in sorted(expected.keys() & tensors.keys())}
    wrong = [f"{name} expected {list(own)}, got {list(got)}" for name, (own, got) in shapes.items() if own != got]
    kinds = {"missing": missing, "unknown": unknown, "of another shape than config.json says": wrong}
    if problems := [f"{kind}: {some(names)}" for kind, names in kinds.items() if names]:
        raise CheckpointError(f"{path} holds another model than its config.json says; tensors {'; '.join(problems)}")
    module.load_state_dict(fuse_split(tensors), assign=True)


def split_fused(state: Mapping[str, Tensor], layer: LayerConfig) -> dict[str, Tensor]:
    """A module's state with its fused projections split, as files have them."""
    keys = layer.num_key_heads * layer.head_dim
    sizes = {
        "qkv_proj": [layer.num_heads * layer.head_dim, keys, keys],
        "gate_up_proj": [layer.intermediate_size, layer.intermediate_size],
    }
    split = dict(state)
    for name in state:
        for fused, parts in FUSED.items():
            if f".{fused}." in name:
                pieces = split.pop(name).split(sizes[fused])
                split |= {name.replace(fused, part): piece for part, piece in zip(parts, pieces, strict=True)}
    return split


def fuse_split(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `split_fused`; all parts of a fused projection must be there."""
    state = dict(tensors)
    for name in tensors:
        for fused, parts in FUSED.items():
            if f".{parts[0]}." in name and name.replace(parts[0], parts[-1]) in tensors:
                pieces = [state.pop(name.replace(parts[0], part)) for part in parts]
                state[name.replace(parts[0], fused)] = torch.cat(pieces)
    return state


def some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    rest = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
