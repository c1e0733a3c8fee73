"""The public checkpoint formats of Medusa heads, safetensors only.

Axis letters: H the target's hidden size, V the target's vocabulary, W what a head scores of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.files.checkpoint import read_finite_tensors
from treespec.heads.modules.medusa import MedusaHead, MedusaHeads

FILE_NAMES = ("medusa_lm_head.safetensors", "model.safetensors")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
ID_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
NUM_NAMED = 3
"""So many missing tensors are named in a message."""

_NAMES = (
    # The authors' format, which text-generation-inference reads too; its second version has no output weights.
    (re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)"), "block"),
    (re.compile(r"(\d+)\.(\d+)\.weight"), "output"),
    # vLLM's.
    (re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)"), "block"),
    (re.compile(r"lm_heads\.(\d+)\.weight"), "output"),
    (re.compile(r"lm_head\.weight"), "shared"),
    (re.compile(r"token_map"), "token_map"),
)


def load_heads(path: str | Path, output_weight: Tensor | None = None) -> MedusaHeads:
    """Medusa heads from a safetensors file, or from a folder that holds one and perhaps a config.json.

    Read are the authors' format (`0.0.linear.weight`, ..., also behind `medusa_head.`), text-generation-inference's
    second version of it, in which the heads share the target's own head, and vLLM's (`blocks.0.layers.0.weight`,
    `lm_heads.0.weight`, `token_map`). config.json may say how many heads and layers there are (`medusa_num_heads`,
    `medusa_num_layers`; vLLM: `num_heads`, `num_hidden_layers`): of more heads the first ones are taken.

    Args:
        path: the file or the folder.
        output_weight: float [V, H], for checkpoints without output weights: `model.get_output_embeddings().weight`.

    Raises:
        CheckpointError: nothing there, a pickle, a damaged file, weights that are not finite, missing or unknown
            tensors, or wrong shapes.
        ConfigError: an `output_weight` that is no matrix of weights.
    """
    file = _find_file(Path(path))
    if output_weight is not None and not _is_matrix(output_weight):
        raise ConfigError(
            f"output_weight must be a floating-point tensor [V, H], got {_describe(output_weight)}: "
            "model.get_output_embeddings().weight"
        )
    found = _sort(read_finite_tensors(file), file)
    if output_weight is not None:
        found.setdefault(("shared",), output_weight.detach())
    config = _read_config(file.with_name("config.json"))
    num_heads = _count(config, ("medusa_num_heads", "num_heads"), found, 1)
    num_layers = _count(config, ("medusa_num_layers", "num_hidden_layers"), found, 2)
    return _assemble(found, num_heads, num_layers, file)


Found = dict[tuple[Any, ...], Tensor]
"""("block", head, layer, "weight" or "bias"), ("output", head), ("shared",) and ("token_map",)."""


def _find_file(path: Path) -> Path:
    if path.suffix in PICKLES:
        raise _pickled(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"there is no file or folder {path}: Medusa heads are read from a local safetensors file")
    files = sorted(path.glob("*.safetensors"))
    named = [path / name for name in FILE_NAMES if (path / name).is_file()] or files
    if named and (named[0].name in FILE_NAMES or len(files) == 1):
        return named[0]
    pickles = sorted(file for file in path.iterdir() if file.suffix in PICKLES)
    if pickles and not files:
        raise _pickled(pickles[0])
    names = ", ".join(file.name for file in files) or "none"
    raise CheckpointError(f"{path} should hold {FILE_NAMES[0]}; its safetensors files: {names}")


def _pickled(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} is a pickle, which can run code and is not opened: convert it once where you trust it, "
        f"weights = torch.load({path.name!r}, weights_only=True); safetensors.torch.save_file("
        f"{{name: tensor.clone() for name, tensor in weights.items()}}, {FILE_NAMES[0]!r})"
    )


def _read_config(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} should hold a mapping, it holds a {type(config).__name__}")
    return config


def _sort(tensors: Mapping[str, Tensor], file: Path) -> Found:
    """The tensors by what they are, whatever format names them."""
    found: Found = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix("medusa_heads.").removeprefix("medusa_head.")
        for pattern, kind in _NAMES:
            if match := pattern.fullmatch(bare):
                place = [int(part) if part.isdecimal() else part for part in match.groups()]
                found[(kind, place[0]) if kind == "output" else (kind, *place)] = tensor
                break
        else:
            raise CheckpointError(f"{file} holds {name!r}, which Medusa heads do not have: another kind of drafter?")
    return found


def _count(config: Mapping[str, Any], names: tuple[str, str], found: Found, axis: int) -> int:
    """How many heads (axis 1 of the keys) or layers (axis 2): what the configuration says, or else the tensors."""
    for name in names:
        if name in config:
            count = config[name]
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise CheckpointError(f"config.json: {name} must be a number of heads or layers, got {count!r}")
            return count
    kinds = ("block", "output") if axis == 1 else ("block",)
    return max((key[axis] for key in found if key[0] in kinds), default=-1) + 1


def _wanted(num_heads: int, num_layers: int, parts: Sequence[str], has_outputs: bool) -> Iterator[tuple[Any, ...]]:
    """The keys of so many heads."""
    for i in range(num_heads):
        yield from (("block", i, j, part) for j in range(num_layers) for part in parts)
        if has_outputs:
            yield "output", i


def _is_matrix(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()


def _describe(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _assemble(found: Found, num_heads: int, num_layers: int, file: Path) -> MedusaHeads:
    has_bias = any(key[-1] == "bias" for key in found)
    shared = found.get(("shared",))
    if shared is None and not any(key[0] == "output" for key in found):
        raise CheckpointError(
            f"{file} holds no output weights, its heads share the target's own: give "
            "output_weight=model.get_output_embeddings().weight"
        )
    # A vLLM checkpoint whose heads share one output may hold the first only.
    if shared is None and num_heads > 1 and {key for key in found if key[0] == "output"} == {("output", 0)}:
        shared = found["output", 0]
    parts = ("weight", "bias") if has_bias else ("weight",)
    wanted = _wanted(num_heads, num_layers, parts, shared is None)
    # Numbers in a file are anyone's: no more keys are looked up than it takes to see that some are missing.
    missing = [" ".join(map(str, key)) for key in islice((key for key in wanted if key not in found), NUM_NAMED + 1)]
    if missing:
        rest = ", ..." if len(missing) > NUM_NAMED else ""
        raise CheckpointError(
            f"{file} lacks tensors of {num_heads} heads with {num_layers} layers: "
            f"{', '.join(missing[:NUM_NAMED])}{rest}"
        )
    if num_heads > 1 and num_layers == 0 and shared is not None:
        raise CheckpointError(f"{file} says {num_heads} heads, none of which has a tensor of its own")
    token_map = found.get(("token_map",))
    if token_map is not None and (token_map.ndim != 1 or not len(token_map) or token_map.dtype not in ID_TYPES):
        raise CheckpointError(f"{file}: token_map must be ids [W], got {_describe(token_map)}")
    heads = []
    for i in range(num_heads):
        blocks = tuple((found["block", i, j, "weight"], found.get(("block", i, j, "bias"))) for j in range(num_layers))
        output = found.get(("output", i), shared)
        assert output is not None
        if token_map is not None and len(output) > len(token_map):
            if int(token_map.max()) >= len(output):
                raise CheckpointError(f"{file}: token_map names rows that an output of {len(output)} does not have")
            output = output[token_map.long()]
        heads.append(MedusaHead(blocks, output))
    return MedusaHeads(tuple(heads), None if token_map is None else token_map.long())
