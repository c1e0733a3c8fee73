"""Writing draft heads in the speculators library's format, which vLLM reads too."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from treespec.errors import ConfigError
from treespec.heads.files.build import FROM_TARGET
from treespec.heads.files.checkpoint import split_fused
from treespec.heads.files.config import FULL, SLIDING
from treespec.heads.files.kinds import kind_of_head
from treespec.heads.modules.base import DraftHead, HeadConfig


def save_head(
    head: DraftHead[Any],
    hidden_layers: Sequence[int],
    folder: str | Path,
    verifier: str | None = None,
    has_lm_head: bool = True,
    has_embedding: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` to a folder.

    Args:
        hidden_layers: the target's hidden states that the head fuses, counted from the embedding (0).
        verifier: the target's name, for information.
        has_lm_head: False leaves out rows that are the target's own; loading takes them from there.
        has_embedding: write the embedding too, for libraries that do not take the target's.
        dtype: of the weights; None: the head's own.

    Raises `ConfigError`: more or fewer hidden layers than the head fuses, negative ones, spans that the format cannot
    express, or weights too large for `dtype`.
    """
    if len(hidden_layers) != head.config.num_features or min(hidden_layers) < 0:
        expected = f"{head.config.num_features} hidden layers, counted from 0"
        raise ConfigError(f"the head fuses {expected}, got {list(hidden_layers)}")
    keys = kind_of_head(head).write_config(head.config, hidden_layers)
    keys["speculators_config"]["verifier"] = {"name_or_path": verifier, "architectures": []}
    state = split_fused(head.state_dict(), head.config.layer)
    if not has_lm_head:
        del state["lm_head.weight"]
        keys[FROM_TARGET] = True
    if has_embedding:
        state["embed_tokens.weight"] = head.embedding
    ids = head.target_ids.cpu()
    if not torch.equal(ids, torch.arange(head.config.vocab_size, device="cpu")):
        is_used = torch.zeros(head.config.vocab_size, dtype=torch.bool, device="cpu").index_fill(0, ids, True)
        state |= {"d2t": ids - torch.arange(len(ids), device="cpu"), "t2d": is_used}
    tensors = {name: _file_tensor(name, tensor, dtype) for name, tensor in state.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _file_tensor(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy, as safetensors forbids tensors that share memory, such as tied embeddings."""
    cast = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous().clone()
    if cast.isinf().any() and not tensor.isinf().any():
        raise ConfigError(f"{name} has weights beyond {dtype}: write them as bfloat16 or float32")
    return cast


def common_keys(
    config: HeadConfig, architecture: str, num_tokens: int, windows: Sequence[int | None]
) -> dict[str, Any]:
    """The keys of heads of every kind, with one layer per window, that draft `num_tokens` by default."""
    return {
        "architectures": [architecture],
        "model_type": "speculators",
        "speculators_model_type": config.algorithm,
        "speculators_config": {
            "algorithm": config.algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_tokens}],
        },
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "target_hidden_size": config.target_hidden_size,
        "transformer_layer_config": _layer_keys(config, windows),
    }


def _layer_keys(config: HeadConfig, windows: Sequence[int | None]) -> dict[str, Any]:
    """`transformer_layer_config`: one layer per window; all windows but None are the same."""
    layer = config.layer
    keys: dict[str, Any] = {
        "model_type": "qwen3" if layer.has_head_norms else "llama",
        "hidden_act": layer.activation,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_key_heads,
        "head_dim": layer.head_dim,
        "num_hidden_layers": len(windows),
        "rms_norm_eps": layer.norm_eps,
        "rope_parameters": dict(layer.rope),
        "max_position_embeddings": layer.max_positions,
        "attention_bias": layer.has_attention_bias,
        "mlp_bias": layer.has_mlp_bias,
        "vocab_size": config.vocab_size,
    }
    if any(windows):
        keys["layer_types"] = [SLIDING if window else FULL for window in windows]
        keys["sliding_window"] = next(window for window in windows if window)
    return keys
