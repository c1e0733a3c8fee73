"""EAGLE-3 heads from SafeAILab's files (SGLang's and SpecForge's too) and from those of the speculators library.

The former keep llama's keys at the top of `config.json` and name the layer `midlayer.*`; the latter keep them in
`transformer_layer_config` and name it `layers.0.*`. Both map a reduced vocabulary by `d2t`: target id = draft id +
d2t[draft id].

Which hidden states are fused: a top-level `eagle_aux_hidden_state_layer_ids` (speculators, vLLM) counts layer *inputs*:
vLLM collects a state before it runs the layer of that number, so an id is an index of transformers' `hidden_states`, as
it is in the default [2, L // 2, L - 3], which speculators writes there itself. The ids inside `eagle_config`
(SpecForge, SGLang) count layer *outputs*: SGLang adds one to each, and SpecForge's default is [1, L // 2 - 1, L - 4],
the same three states.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.checkpoint import Checkpoint, load_state, positive_int
from treespec.heads.eagle3 import Eagle3Config, Eagle3Head
from treespec.heads.layers import LayerConfig
from treespec.heads.rotary import rope_settings

NUM_FEATURES = 3
"""EAGLE-3's own number, for a message where neither the configuration nor `fc.weight` tells it."""

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
"""The target's own weights and what is computed."""


def build_eagle3(
    checkpoint: Checkpoint,
    embedding: Tensor | None = None,
    lm_head: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Eagle3Head:
    """The head that a checkpoint holds.

    Args:
        embedding: the target's [V, J], for files without one.
        lm_head: the target's [V, J], for files that leave out the draft vocabulary's rows of it and say so by
            `lm_head_from_target` in their configuration.
        dtype, device: of the module.

    Raises:
        CheckpointError: the configuration or a tensor is not that of an EAGLE-3 head, or nothing to embed with.
    """
    path, tensors = checkpoint.path, _plain_names(checkpoint.tensors)
    config = eagle3_config(checkpoint.config, tensors, path)
    mappings = {name: tensors.pop(name, None) for name in ("d2t", "t2d")}
    target_ids = _target_ids(config, mappings["d2t"], mappings["t2d"], path)
    embedding = _embedding(config, tensors.pop("embed_tokens.weight", None), embedding, path)
    if checkpoint.config.get("lm_head_from_target") is True and "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = _head_rows(config, lm_head, target_ids, path)
    tensors = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    with torch.device("meta"):
        head = Eagle3Head(config, embedding.to(device=device, dtype=dtype), target_ids)
    load_state(head, tensors, config.layer, path)
    return head.to(device).eval()


def eagle3_config(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> Eagle3Config:
    """The head's shape. Biases and norms that configurations leave unsaid are those that the file has tensors for.

    Raises:
        CheckpointError: another kind of model, a missing or wrong size, or a setting that is not read.
    """
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise CheckpointError(f"{path} holds a {kind!r} speculator, expected 'eagle3'")
    llama = config.get("transformer_layer_config", config)
    if not isinstance(llama, Mapping):
        raise CheckpointError(f"{path}: transformer_layer_config must be an object, got {type(llama).__name__}")
    layer = _layer_config(llama, tensors, path)
    nested = config.get("eagle_config") or {}
    layers = _hidden_layers(config, nested, path)
    vocab_size = positive_int(llama, "vocab_size", path)
    target_hidden_size = positive_int(config, "target_hidden_size", path, layer.hidden_size)
    fused = tensors.get("fc.weight")
    columns = NUM_FEATURES if fused is None or fused.ndim != 2 else max(fused.shape[1] // target_hidden_size, 1)

    def has(flag: str, tensor: str) -> bool:
        said = config.get(flag, nested.get(flag))
        return tensor in tensors if said is None else bool(said)

    return Eagle3Config(
        layer=layer,
        vocab_size=vocab_size,
        draft_vocab_size=positive_int(config, "draft_vocab_size", path, vocab_size),
        target_hidden_size=target_hidden_size,
        num_features=len(layers) if layers else positive_int(config, "num_aux_hidden_states", path, columns),
        num_layers=positive_int(llama, "num_hidden_layers", path, 1),
        has_norm_before_residual=bool(config.get("norm_before_residual", nested.get("norm_before_residual"))),
        has_norm_before_fc=has("norm_before_fc", "input_norm.weight"),
        has_feature_norms=has("fc_norm", "fc_norm.0.weight"),
        has_norm_output=bool(config.get("norm_output", nested.get("norm_output"))),
        hidden_layers=layers,
    )


def _layer_config(llama: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> LayerConfig:
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
        window=_window(llama, path),
    )


def _window(llama: Mapping[str, Any], path: Path) -> int | None:
    kinds = set(llama.get("layer_types") or ())
    if not kinds:
        kinds = {"sliding_attention"} if llama.get("use_sliding_window") else {"full_attention"}
    if kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"}:
        raise CheckpointError(f"{path}: layers of several or unknown types are not read, got {sorted(map(str, kinds))}")
    return positive_int(llama, "sliding_window", path)


def _hidden_layers(config: Mapping[str, Any], nested: Any, path: Path) -> tuple[int, ...] | None:
    """Indices of `HiddenStates`; see the module's docstring."""
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"{path}: eagle_config must be an object, got {type(nested).__name__}")
    inputs, outputs = config.get(LAYER_IDS), nested.get(LAYER_IDS)
    ids, offset = (inputs, 0) if inputs else (outputs, 1)
    if not ids:
        return None
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(f"{path}: {LAYER_IDS} must be a list of layer numbers, got {ids!r}")
    return tuple(i + offset for i in ids)


def _plain_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the speculators library's names."""
    plain = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    plain = {
        f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name: tensor
        for name, tensor in plain.items()
    }
    return {name: tensor for name, tensor in plain.items() if name not in IGNORED and not name.endswith(".inv_freq")}


def _target_ids(config: Eagle3Config, offsets: Tensor | None, is_used: Tensor | None, path: Path) -> Tensor:
    """int64 [W]: the target's id of every draft id."""
    size, vocab_size = config.draft_vocab_size, config.vocab_size
    ids = torch.arange(size)
    if offsets is None:
        if size != vocab_size:
            raise CheckpointError(f"{path} lacks d2t, which maps the {size} draft ids to {vocab_size} target ids")
        return ids
    if offsets.shape != ids.shape or offsets.is_floating_point():
        raise CheckpointError(f"{path}: d2t must be int64 [{size}], got {offsets.dtype} {list(offsets.shape)}")
    ids = ids + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < size:
        raise CheckpointError(f"{path}: d2t must map the draft ids to {size} different ids in [0, {vocab_size})")
    if is_used is not None:
        expected = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, ids, True)
        if is_used.shape != expected.shape or not torch.equal(is_used.bool(), expected):
            raise CheckpointError(f"{path}: t2d must be bool [{vocab_size}], True just at the ids that d2t maps to")
    return ids


def _embedding(config: Eagle3Config, own: Tensor | None, targets: Tensor | None, path: Path) -> Tensor:
    """[V, H], the file's or the target's."""
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


def _head_rows(config: Eagle3Config, lm_head: Tensor | None, target_ids: Tensor, path: Path) -> Tensor:
    """The target's lm_head rows [W, H] of the draft vocabulary."""
    if lm_head is None or lm_head.shape[1] != config.layer.hidden_size or lm_head.shape[0] <= int(target_ids.max()):
        got = None if lm_head is None else list(lm_head.shape)
        raise CheckpointError(
            f"{path} leaves out its lm_head for rows of the target's, [{config.vocab_size}, "
            f"{config.layer.hidden_size}]; got {got}: it is the head of another model"
        )
    return lm_head.detach()[target_ids.to(lm_head.device)]
