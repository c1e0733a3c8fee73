"""What the files of all draft heads share: layers in llama's words, reduced vocabularies, the target's own weights.

Axis letters: H the head's hidden size, J the target's, V the target's vocabulary, W the draft vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import MAX_SIZE, positive_int
from treespec.heads.modules.base import HeadConfig
from treespec.heads.modules.layers import LayerConfig
from treespec.heads.modules.rotary import rope_settings

IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
"""The target's own weights and what is computed."""

FULL, SLIDING = "full_attention", "sliding_attention"
"""What `layer_types` may name."""

ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

FROM_TARGET = "lm_head_from_target"
"""The configuration's key for files that leave out rows of the target's own head."""


def llama_keys(config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The layers' keys: the speculators library nests them, others keep them at the top.

    Raises:
        CheckpointError: they are no object.
    """
    llama = config.get("transformer_layer_config", config)
    if not isinstance(llama, Mapping):
        raise CheckpointError(f"{path}: transformer_layer_config must be an object, got {type(llama).__name__}")
    return llama


def layer_numbers(ids: Any, name: str, path: Path) -> tuple[int, ...]:
    """A list of layers as `name` gives it.

    Raises:
        CheckpointError: not a list of ints that are not negative.
    """
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(f"{path}: {name} must be a list of layer numbers, got {ids!r}")
    return tuple(ids)


def plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without a prefix `model.`, and without those that are ignored."""
    plain = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return {name: tensor for name, tensor in plain.items() if name not in IGNORED and not name.endswith(".inv_freq")}


def num_layers(llama: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path, default: int | None = None) -> int:
    """How many decoder layers there are.

    Raises:
        CheckpointError: no positive int, or more layers than the file has tensors.
    """
    count = positive_int(llama, "num_hidden_layers", path, default, limit=math.inf)
    if count > len(tensors):
        raise CheckpointError(f"{path}: num_hidden_layers is {count} where the file has {len(tensors)} tensors")
    return count


def layer_config(llama: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> LayerConfig:
    """The layers' shape in llama's keys. Biases and norms are those that the file has tensors for.

    Raises:
        CheckpointError: a missing or wrong size, or a setting that is not read.
    """
    if llama.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{path}: hidden_act {llama['hidden_act']!r} is not read, only 'silu'")
    hidden_size = positive_int(llama, "hidden_size", path)
    num_heads = positive_int(llama, "num_attention_heads", path)
    num_key_heads = positive_int(llama, "num_key_value_heads", path, num_heads)
    head_dim = positive_int(llama, "head_dim", path, hidden_size // num_heads)
    if num_heads % num_key_heads or head_dim % 2:
        raise CheckpointError(
            f"{path}: expected key heads that divide the heads and an even head size, got {num_heads} heads, "
            f"{num_key_heads} key heads of size {head_dim}"
        )
    if num_heads * head_dim > MAX_SIZE:
        raise CheckpointError(f"{path}: {num_heads} heads of size {head_dim} are more than {MAX_SIZE} numbers together")
    norm_eps = llama.get("rms_norm_eps", 1e-6)
    if isinstance(norm_eps, bool) or not isinstance(norm_eps, (int, float)) or not norm_eps >= 0:
        raise CheckpointError(f"{path}: rms_norm_eps must be a number that is not negative, got {norm_eps!r}")
    return LayerConfig(
        hidden_size=hidden_size,
        intermediate_size=positive_int(llama, "intermediate_size", path),
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        head_dim=head_dim,
        norm_eps=norm_eps,
        rope=rope_settings(llama),
        max_positions=positive_int(llama, "max_position_embeddings", path, 2048),
        has_attention_bias="layers.0.self_attn.q_proj.bias" in tensors,
        has_output_bias="layers.0.self_attn.o_proj.bias" in tensors,
        has_mlp_bias="layers.0.mlp.gate_proj.bias" in tensors,
        has_head_norms="layers.0.self_attn.q_norm.weight" in tensors,
    )


def sliding_window(llama: Mapping[str, Any], path: Path) -> int:
    """How many positions layers with a sliding window see; one beyond all texts may be any number.

    Raises:
        CheckpointError: no positive int.
    """
    return min(positive_int(llama, "sliding_window", path, limit=math.inf), MAX_SIZE)


def target_ids(config: HeadConfig, offsets: Tensor | None, is_used: Tensor | None, path: Path) -> Tensor:
    """int64 [W]: the target's id of every draft id.

    Raises:
        CheckpointError: d2t that is missing or none, or t2d that says otherwise.
    """
    size, vocab_size = config.draft_vocab_size, config.vocab_size
    if offsets is None:
        if size != vocab_size:
            raise CheckpointError(f"{path} lacks d2t, which maps the {size} draft ids to {vocab_size} target ids")
        return torch.arange(size)
    if list(offsets.shape) != [size] or offsets.dtype not in ID_DTYPES:
        raise CheckpointError(f"{path}: d2t must be int64 [{size}], got {offsets.dtype} {list(offsets.shape)}")
    ids = torch.arange(size) + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < size:
        raise CheckpointError(f"{path}: d2t must map the draft ids to {size} different ids in [0, {vocab_size})")
    if is_used is not None:
        expected = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        if is_used.shape != expected.shape or not torch.equal(is_used.bool(), expected):
            raise CheckpointError(f"{path}: t2d must be bool [{vocab_size}], True just at the ids that d2t maps to")
    return ids


def own_or_targets(config: HeadConfig, own: Tensor | None, targets: Tensor | None, path: Path) -> Tensor:
    """The embedding [V, H], the file's or the target's.

    Raises:
        CheckpointError: neither, or of another width.
    """
    hidden_size = config.layer.hidden_size
    if own is not None:
        if list(own.shape) != [config.vocab_size, hidden_size]:
            expected = [config.vocab_size, hidden_size]
            raise CheckpointError(f"{path}: embed_tokens.weight expected {expected}, got {list(own.shape)}")
        return own
    if targets is None:
        raise CheckpointError(f"{path} has no embed_tokens.weight: pass the target's embedding")
    if targets.shape[1] != hidden_size:
        raise CheckpointError(
            f"{path} has no embed_tokens.weight, and the target's embedding is {targets.shape[1]} wide where the head "
            f"is {hidden_size}: it is the head of another model"
        )
    return targets


def head_rows(config: HeadConfig, lm_head: Tensor | None, ids: Tensor, path: Path) -> Tensor:
    """The target's lm_head rows [W, H] of the draft vocabulary: the target's own tensor where that is all of it.

    Raises:
        CheckpointError: a target without them.
    """
    if lm_head is None or lm_head.shape[1] != config.layer.hidden_size or lm_head.shape[0] <= int(ids.max()):
        got = None if lm_head is None else list(lm_head.shape)
        raise CheckpointError(
            f"{path} leaves out its lm_head for rows of the target's, [{config.vocab_size}, "
            f"{config.layer.hidden_size}]; got {got}: it is the head of another model"
        )
    if torch.equal(ids, torch.arange(lm_head.shape[0])):
        return lm_head.detach()
    return lm_head.detach()[ids.to(lm_head.device)]
