"""What the writers of all draft heads share: folders in the speculators library's format, which vLLM reads too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from treespec.heads.checkpoint import split_fused
from treespec.heads.dflash import BlockHead
from treespec.heads.eagle3 import Eagle3Head
from treespec.heads.file_parts import FROM_TARGET, HeadConfig
from treespec.heads.layers import LayerConfig

FULL, SLIDING = "full_attention", "sliding_attention"


def write_head(
    head: Eagle3Head | BlockHead,
    keys: dict[str, Any],
    folder: str | Path,
    has_lm_head: bool,
    has_embedding: bool,
    dtype: torch.dtype | None = None,
) -> None:
    """Write `config.json` of `keys` and `model.safetensors`.

    Args:
        has_lm_head: False leaves out rows that are the target's own; the loader takes them from there again.
        has_embedding: with the embedding, for readers that do not take the target's.
        dtype: of the weights; None: the head's own.
    """
    state = split_fused(head.state_dict(), head.config.layer)
    if not has_lm_head:
        del state["lm_head.weight"]
        keys = keys | {FROM_TARGET: True}
    if has_embedding:
        state["embed_tokens.weight"] = head.embedding
    if not torch.equal(head.target_ids.cpu(), torch.arange(head.config.vocab_size)):
        state |= _vocabulary_maps(head)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
    # Copies, for the file's format forbids tensors that share memory, as tied embeddings do.
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous().clone()
        for name, tensor in state.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def speculators_keys(
    algorithm: str, architecture: str, config: HeadConfig, num_tokens: int, verifier: str | None
) -> dict[str, Any]:
    """The keys that every head has in the speculators format; `num_tokens` drafted by default."""
    return {
        "architectures": [architecture],
        "model_type": "speculators",
        "speculators_model_type": algorithm,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_tokens}],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
    }


def layer_keys(config: HeadConfig, windows: Sequence[int | None]) -> dict[str, Any]:
    """`transformer_layer_config`: layers of these windows, which are all the same but for None."""
    layer: LayerConfig = config.layer
    keys: dict[str, Any] = {
        "model_type": "qwen3" if layer.has_head_norms else "llama",
        "hidden_act": "silu",
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


def _vocabulary_maps(head: Eagle3Head | BlockHead) -> dict[str, Tensor]:
    ids = head.target_ids.cpu()
    is_used = torch.zeros(head.config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return {"d2t": ids - torch.arange(len(ids)), "t2d": is_used}
