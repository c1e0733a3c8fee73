"""Writing EAGLE-3 heads in the speculators library's format, which vLLM reads too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from treespec.heads.eagle3 import Eagle3Head
from treespec.heads.eagle3_files import LAYER_IDS
from treespec.heads.export import layer_keys, speculators_keys, write_head

NUM_TOKENS = 3
"""What the file says to draft by default."""


def save_eagle3(
    head: Eagle3Head,
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
        verifier: the target's name, for the record.
        has_lm_head: False leaves out rows that are the target's own; the loader takes them from there again.
        has_embedding: with the embedding, for readers that do not take the target's.
        dtype: of the weights; None: the head's own.
    """
    config = head.config
    keys = speculators_keys("eagle3", "Eagle3Speculator", config, NUM_TOKENS, verifier) | {
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.has_norm_before_residual,
        "norm_before_fc": config.has_norm_before_fc,
        "fc_norm": config.has_feature_norms,
        "norm_output": config.has_norm_output,
        LAYER_IDS: list(hidden_layers),
        "transformer_layer_config": layer_keys(config, [config.layer.window] * config.num_layers),
    }
    write_head(head, keys, folder, has_lm_head, has_embedding, dtype)
