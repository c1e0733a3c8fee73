"""Writing EAGLE-3 heads in the speculators library's format, which vLLM reads too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from treespec.heads.checkpoint import split_fused
from treespec.heads.eagle3 import Eagle3Config, Eagle3Head
from treespec.heads.eagle3_files import LAYER_IDS


def save_eagle3(
    head: Eagle3Head,
    hidden_layers: Sequence[int],
    folder: str | Path,
    verifier: str | None = None,
    has_lm_head: bool = True,
    has_embedding: bool = False,
) -> None:
    """Write `config.json` and `model.safetensors` to a folder, in the head's own dtype.

    Args:
        hidden_layers: the target's hidden states that the head fuses, counted from the embedding (0).
        verifier: the target's name, for the record.
        has_lm_head: False leaves out rows that are the target's own; the loader takes them from there again.
        has_embedding: with the embedding, for readers that do not take the target's.
    """
    state = split_fused(head.state_dict(), head.config.layer)
    if not has_lm_head:
        del state["lm_head.weight"]
    if has_embedding:
        state["embed_tokens.weight"] = head.embedding
    if head.config.draft_vocab_size < head.config.vocab_size:
        state |= _vocabulary_maps(head)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = _speculators_config(head.config, hidden_layers, verifier)
    if not has_lm_head:
        config["lm_head_from_target"] = True
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _vocabulary_maps(head: Eagle3Head) -> dict[str, Tensor]:
    ids = head.target_ids.cpu()
    is_used = torch.zeros(head.config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return {"d2t": ids - torch.arange(len(ids)), "t2d": is_used}


def _speculators_config(config: Eagle3Config, hidden_layers: Sequence[int], verifier: str | None) -> dict[str, Any]:
    layer = config.layer
    sliding = {"layer_types": ["sliding_attention"] * config.num_layers, "sliding_window": layer.window}
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.has_norm_before_residual,
        "norm_before_fc": config.has_norm_before_fc,
        "fc_norm": config.has_feature_norms,
        "norm_output": config.has_norm_output,
        LAYER_IDS: list(hidden_layers),
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "qwen3" if layer.has_head_norms else "llama",
            "hidden_act": "silu",
            "hidden_size": layer.hidden_size,
            "intermediate_size": layer.intermediate_size,
            "num_attention_heads": layer.num_heads,
            "num_key_value_heads": layer.num_key_heads,
            "head_dim": layer.head_dim,
            "num_hidden_layers": config.num_layers,
            "rms_norm_eps": layer.norm_eps,
            "rope_parameters": dict(layer.rope),
            "max_position_embeddings": layer.max_positions,
            "attention_bias": layer.has_attention_bias,
            "mlp_bias": layer.has_mlp_bias,
            "vocab_size": config.vocab_size,
            **({} if layer.window is None else sliding),
        },
    }
