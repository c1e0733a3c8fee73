"""The public checkpoint formats of Medusa heads, safetensors only."""

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.files.checkpoint import ID_DTYPES, read_finite_tensors, some, weight_files
from treespec.heads.files.config import ConfigReader, config_in
from treespec.heads.files.keys import LAYER_KEYS, KindKeys, times, words
from treespec.heads.medusa.module import MedusaHead, MedusaHeads

FILE_NAMES = ("medusa_lm_head.safetensors", "model.safetensors")

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

KEYS = KindKeys(
    name="Medusa",
    section=None,
    used=words("logit_scale medusa_num_heads medusa_num_layers num_heads num_hidden_layers"),
    inert={},
    # Sizes are those of the tensors, trees are the policy's; a whole target's configuration may be next to the heads.
    harmless=LAYER_KEYS - {"num_hidden_layers"}
    | words(
        "hidden_act max_paths max_seq_len medusa_choices medusa_fc_bias medusa_hidden_size medusa_vocab_size "
        "original_lm_head topk truncated_vocab_size"
    ),
    layers=frozenset(),
)

Found = dict[tuple[str | int, ...], Tensor]
"""("block", head, layer, "weight" or "bias"), ("output", head), ("shared",) and ("token_map",)."""


def load_heads(path: str | Path, output_weight: Tensor | None = None) -> MedusaHeads:
    """Medusa heads from a safetensors file, or from a folder that holds one and perhaps a config.json.

    Supported are the authors' format (`0.0.linear.weight`, ..., with or without the prefix `medusa_head.`), its second
    version, in which the heads share the target's output layer, and vLLM's (`blocks.0.layers.0.weight`,
    `lm_heads.0.weight`, `token_map`). config.json may limit the number of heads and layers: the first ones are taken.
    Checkpoints without output weights need `output_weight` [V, H]: `model.get_output_embeddings().weight`.

    Raises:
        CheckpointError: nothing there, a damaged file, weights that are not finite, missing or unknown
            tensors, wrong shapes, or a setting that is not known.
        ConfigError: an `output_weight` that is not a matrix of weights.
    """
    file = _find_file(Path(path))
    is_tensor = isinstance(output_weight, Tensor)
    if output_weight is not None and not (is_tensor and output_weight.ndim == 2 and output_weight.is_floating_point()):
        got = f"{output_weight.dtype} {list(output_weight.shape)}" if is_tensor else type(output_weight).__name__
        wanted = "a floating-point tensor [V, H]"
        raise ConfigError(f"output_weight must be {wanted}, got {got}: model.get_output_embeddings().weight")
    found = _classify(read_finite_tensors(file), file)
    if output_weight is not None:
        found.setdefault(("shared",), output_weight.detach())
    config = ConfigReader(file.with_name("config.json"), config_in(file.parent))
    KEYS.check(config)
    scale = config.factor("logit_scale")
    found = {key: times(tensor, scale) if key[0] in ("output", "shared") else tensor for key, tensor in found.items()}
    num_heads = _count(config, ("medusa_num_heads", "num_heads"), found, 1)
    num_layers = _count(config, ("medusa_num_layers", "num_hidden_layers"), found, 2)
    return _assemble(found, num_heads, num_layers, file)


def _find_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"there is no file or folder {path}: Medusa heads are read from a local safetensors file")
    files = weight_files(path)
    named = [file for file in files if file.name in FILE_NAMES]
    if not named and len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{path} should hold {FILE_NAMES[0]}; its safetensors files: {names}")
    return (named or files)[0]


def _classify(tensors: Mapping[str, Tensor], file: Path) -> Found:
    """The tensors by their role, whichever format names them."""
    found: Found = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix("medusa_heads.").removeprefix("medusa_head.")
        match, kind = next(((m, kind) for pattern, kind in _NAMES if (m := pattern.fullmatch(bare))), (None, ""))
        if match is None:
            raise CheckpointError(f"{file} holds {name!r}, which Medusa heads do not have: another kind of drafter?")
        indices = [int(part) if part.isdecimal() else part for part in match.groups()]
        found[(kind, indices[0]) if kind == "output" else (kind, *indices)] = tensor
    return found


def _count(config: ConfigReader, names: tuple[str, str], found: Found, axis: int) -> int:
    """How many heads (axis 1 of the keys) or layers (axis 2) the configuration says, or else the tensors' names."""
    for name in names:
        if config.get(name) is not None:
            return config.integer(name, least=0, most=len(found))
    kinds = ("block", "output") if axis == 1 else ("block",)
    count = max((int(key[axis]) for key in found if key[0] in kinds), default=-1) + 1
    if count > len(found):
        raise CheckpointError(f"{config.path.parent}: of {len(found)} tensors one has the number {count - 1}")
    return count


def _assemble(found: Found, num_heads: int, num_layers: int, file: Path) -> MedusaHeads:
    shared = _shared_output(found, num_heads, file)
    parts = ("weight", "bias") if any(key[-1] == "bias" for key in found) else ("weight",)
    wanted = [("block", i, j, part) for i in range(num_heads) for j in range(num_layers) for part in parts]
    if shared is None:
        wanted += [("output", i) for i in range(num_heads)]
    if missing := [" ".join(map(str, key)) for key in wanted if key not in found]:
        raise CheckpointError(f"{file} lacks tensors of {num_heads} heads with {num_layers} layers: {some(missing)}")
    token_map = found.get(("token_map",))
    if token_map is not None:
        if token_map.ndim != 1 or not len(token_map) or token_map.dtype not in ID_DTYPES:
            raise CheckpointError(f"{file}: token_map must be ids [W], got {token_map.dtype} {list(token_map.shape)}")
        token_map = token_map.long()
    heads = []
    for i in range(num_heads):
        blocks = tuple((found["block", i, j, "weight"], found.get(("block", i, j, "bias"))) for j in range(num_layers))
        output = found["output", i] if shared is None else found.get(("output", i), shared)
        if token_map is not None and len(output) > len(token_map):
            if int(token_map.max()) >= len(output):
                raise CheckpointError(f"{file}: token_map names rows that an output of {len(output)} does not have")
            output = output[token_map]
        heads.append(MedusaHead(blocks, output))
    return MedusaHeads(tuple(heads), token_map)


def _shared_output(found: Found, num_heads: int, file: Path) -> Tensor | None:
    """The output weights of heads that have none of their own."""
    outputs = {key for key in found if key[0] == "output"}
    if ("shared",) not in found and not outputs:
        raise CheckpointError(
            f"{file} holds no output weights, its heads share the target's own: give "
            "output_weight=model.get_output_embeddings().weight"
        )
    # A vLLM checkpoint whose heads share one output may hold the first only.
    return found.get(("shared",), found["output", 0] if num_heads > 1 and outputs == {("output", 0)} else None)
