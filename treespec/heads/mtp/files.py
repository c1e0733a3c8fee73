"""MTP layers in the files of the target's own checkpoint, by the names that publishers give them.

Names are compared without `model.` and `language_model.` in front. Sources: vLLM's readers (`deepseek_mtp`,
`qwen3_next_mtp`, `qwen3_5_mtp`, `mimo_mtp`, `ernie_mtp`, `exaone_moe_mtp`, `nemotron_h_mtp`), transformers' `MtpModel`,
the speculators library's `mtp`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treespec.data.tensor_file import open_tensors
from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.heads.files.checkpoint import read_finite_tensors, some
from treespec.heads.files.config import config_in

DRAFT_VOCAB = "draft_vocab.json"
"""A list of the target's ids that layers were trained to draft, next to their tensors; other publishers have none."""
PREFIX = re.compile(r"^(?:model\.|language_model\.)+")
FINAL_NORM = re.compile(r"^(layers\.\d+\.)final_layernorm\.")
"""The name of DeepSeek's `shared_head.norm` in Ling, Ring and Hy3; all other names are the same."""
UNSERVED = {
    ".transformer.shared_head.output.": "Step-3.5 and 3.7: each layer has an output layer of its own",
    ".transformer_block.": "Inkling: they keep states of convolutions",
    ".transformer_layer.": "MiniMax-M3: their attention is sparse",
    ".pre_mlp_layernorm.": "MiMo-V2: each layer reads the target's state",
    ".enorm.m.": "LongCat-Flash: names of its own",
}
"""Parts of tensor names that mark layouts which are not supported, to the models and the reason."""
SCALES, BLOCK = (".weight_scale", ".weight_scale_inv"), (128, 128)
"""Ends of names of the scales of weights in 8-bit floats: one, one for each row, or one for each block of this size."""
COPIES = (".embed_tokens.weight", ".shared_head.head.weight")
"""Ends of names of the target's own embedding and output layer, which some layouts repeat; they are not read."""


PARTS = ("embedding_norm", "hidden_norm", "projection", "norm")
"""Tensors of an MTP layer around its decoder layers, by the fields of `Layout`."""


@dataclass(frozen=True)
class Layout:
    """Names of one layout, without `.weight`; `{layer}` is the layer's number, and `block` is before a name with a dot.

    Args:
        block: of a decoder layer.
        embedding_norm, hidden_norm, projection: of the layer's inputs.
        norm: of its output; None: there is none.
        is_hidden_first: `projection` reads the state before the embedding.
        is_after_target: numbers go on from the target's layers.
        is_speculators: of the files that the speculators library writes.
        is_one_layer: all decoder layers are of one MTP layer, the first has its inputs' tensors and the last its norm.
    """

    name: str
    block: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str | None
    is_hidden_first: bool = False
    is_after_target: bool = False
    is_speculators: bool = False
    is_one_layer: bool = False

    def tensor(self, part: str, number: int) -> str | None:
        """The tensor's name of one of `PARTS` in the layer of this number; None: the layout has none."""
        if (name := getattr(self, part)) is None:
            return None
        begin = self.block if name.startswith(".") else ""
        return f"{begin}{name}.weight".format(layer=number)


MIMO = Layout(
    "mimo",
    "mtp_layers.{layer}",
    ".token_layernorm",
    ".hidden_layernorm",
    ".input_proj",
    ".final_layernorm",
    is_hidden_first=True,
)
QWEN = Layout("qwen", "mtp.layers.{layer}", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
ERNIE = ("mtp_block.{layer}", "mtp_emb_norm.{layer}", "mtp_hidden_norm.{layer}", "mtp_linear_proj.{layer}")
LAYOUTS = (
    Layout("deepseek", "layers.{layer}", ".enorm", ".hnorm", ".eh_proj", ".shared_head.norm", is_after_target=True),
    QWEN,
    MIMO,
    # The names are MiMo's, the order is Qwen's, from whose checkpoints the library takes them.
    replace(MIMO, name="speculators", is_hidden_first=False, is_speculators=True),
    Layout("ernie", *ERNIE, norm=None),
    Layout("nemotron", "mtp.layers.{layer}", ".enorm", ".hnorm", ".eh_proj", ".final_layernorm", is_one_layer=True),
)


@dataclass(frozen=True)
class MtpTensors:
    """One MTP layer's tensors, on the CPU; those of its decoder layers by their names in such a layer."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    projection: Tensor
    norm: Tensor | None
    blocks: tuple[dict[str, Tensor], ...]


def read_mtp(
    folder: Path, num_hidden_layers: int, dtype: torch.dtype = torch.float32
) -> tuple[Layout, list[MtpTensors]] | None:
    """The MTP layers in a checkpoint of a target with this many layers; None: there are none.

    Weights in 8-bit floats, such as DeepSeek's and GLM's, are multiplied by their scales, in `dtype`.

    Raises:
        CheckpointError: no safetensors, a damaged file, a layout that is not known, tensors that are missing or left
            over, or integers in place of weights.
        UnsupportedModelError: a kind that is known and not served.
    """
    tensors: dict[str, Tensor] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"MTP layers are read from *.safetensors files, {folder} has none")
    for file in files:
        with open_tensors(file) as opened:
            names = [name for name in opened.keys() if _is_mtp(_plain(name), num_hidden_layers)]  # noqa: SIM118
        tensors |= {_plain(name): tensor for name, tensor in read_finite_tensors(file, names).items()}
    if not tensors:
        return None
    tensors = _dequantized(tensors, folder, dtype)
    layout, first = _layout(folder, tensors, num_hidden_layers)
    layers = _take_layers(layout, tensors, first, folder)
    if tensors:
        raise CheckpointError(
            f"{folder} holds tensors that no MTP layer of the {layout.name} layout has: {some(sorted(tensors))}"
        )
    return layout, layers


def read_draft_vocab(folder: Path, vocab_size: int) -> list[int] | None:
    """The ids below `vocab_size` in `DRAFT_VOCAB`, None without that file. Raises `CheckpointError`: anything else."""
    file = folder / DRAFT_VOCAB
    if not file.exists():
        return None
    try:
        ids = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    if not are_different_ids(ids, vocab_size):
        raise CheckpointError(f"{file} must be a list of different token ids below {vocab_size}")
    return ids


def are_different_ids(ids: Any, vocab_size: int) -> bool:
    """Whether these are one or more ids below `vocab_size`, each once."""
    is_sound = isinstance(ids, Sequence) and all(type(token) is int and 0 <= token < vocab_size for token in ids)
    return is_sound and 0 < len(ids) == len(set(ids))


def is_speculators_mtp(folder: Path) -> bool:
    """Whether the files are MTP layers that the speculators library wrote."""
    return config_in(folder).get("speculators_model_type") == "mtp"


def _plain(name: str) -> str:
    return FINAL_NORM.sub(r"\1shared_head.norm.", PREFIX.sub("", name))


def _is_mtp(name: str, num_hidden_layers: int) -> bool:
    """Whether a tensor does not belong to the target itself."""
    if name.endswith(COPIES):
        return False
    number = re.match(r"layers\.(\d+)\.", name)
    return name.startswith("mtp") if number is None else int(number[1]) >= num_hidden_layers


def _dequantized(tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights in 8-bit floats times their scales. Raises `CheckpointError`: scales of other shapes."""
    names = [name for name in tensors if name.endswith(SCALES) and name.rpartition("_scale")[0] in tensors]
    if not names:
        return tensors
    sizes = (config_in(folder).get("quantization_config") or {}).get("weight_block_size") or BLOCK
    for name in names:
        scales, weight = tensors.pop(name), tensors[name.rpartition("_scale")[0]]
        if scales.numel() > 1 and scales.shape != (len(weight), 1):
            if [-(-size // block) for size, block in zip(weight.shape, sizes, strict=False)] != [*scales.shape]:
                raise CheckpointError(f"{folder}: {name} {[*scales.shape]} is not of rows or blocks of {sizes} weights")
            for dim, block in enumerate(sizes):
                scales = scales.repeat_interleave(block, dim).narrow(dim, 0, weight.shape[dim])
        tensors[name.rpartition("_scale")[0]] = (weight.float() * scales.float()).to(dtype)
    return tensors


def _layout(folder: Path, tensors: Mapping[str, Tensor], num_hidden_layers: int) -> tuple[Layout, int]:
    """The layout of the tensors, and the number of its first layer."""
    if kinds := [kind for part, kind in UNSERVED.items() if any(part in name for name in tensors)]:
        raise UnsupportedModelError(f"{folder} holds MTP layers of a kind that is not served, of {kinds[0]}")
    is_speculators = is_speculators_mtp(folder)
    for layout in LAYOUTS:
        if layout.is_speculators is not is_speculators:
            continue
        first = num_hidden_layers if layout.is_after_target else 0
        if layout.tensor("projection", first) in tensors:
            return layout, first
    names = ", ".join(layout.name for layout in LAYOUTS)
    found = some(sorted(tensors))
    raise CheckpointError(f"{folder} holds MTP layers in a layout that is not read ({names} are): {found}")


def _take_layers(layout: Layout, tensors: dict[str, Tensor], first: int, folder: Path) -> list[MtpTensors]:
    """All layers, in their order; what they have is taken out of `tensors`."""

    def find(part: str, number: int) -> Any:
        name = layout.tensor(part, number)
        if name is not None and name not in tensors:
            raise CheckpointError(f"{folder} lacks {name}, which MTP layers of the {layout.name} layout have")
        return None if name is None else tensors[name]

    count = 0
    while any(name.startswith(_prefix(layout, first + count)) for name in tensors):
        count += 1
    numbers = range(first, first + count)
    groups = [numbers] if layout.is_one_layer else [range(number, number + 1) for number in numbers]
    own = [{part: find(part, group[-1 if part == "norm" else 0]) for part in PARTS} for group in groups]
    for name in [layout.tensor(part, number) for part in PARTS for number in numbers]:
        tensors.pop(name or "", None)
    return [
        MtpTensors(**parts, blocks=tuple(_take_block(layout, tensors, number) for number in group))
        for parts, group in zip(own, groups, strict=True)
    ]


def _take_block(layout: Layout, tensors: dict[str, Tensor], number: int) -> dict[str, Tensor]:
    prefix = _prefix(layout, number)
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def _prefix(layout: Layout, number: int) -> str:
    return layout.block.format(layer=number) + "."
