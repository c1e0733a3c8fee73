"""Writing block-parallel heads in the speculators library's format, which vLLM reads too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from treespec.errors import ConfigError
from treespec.heads.dflash import BlockConfig, BlockHead
from treespec.heads.dflash_files import LAYER_IDS
from treespec.heads.export import layer_keys, speculators_keys, write_head


def save_block(
    head: BlockHead,
    hidden_layers: Sequence[int],
    folder: str | Path,
    verifier: str | None = None,
    has_lm_head: bool = True,
    has_embedding: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` to a folder; DSpark's if it is one.

    Args:
        hidden_layers: the target's hidden states that the head fuses, counted from the embedding (0).
        verifier: the target's name, for the record.
        has_lm_head: False leaves out rows that are the target's own; the loader takes them from there again.
        has_embedding: with the embedding, for readers that do not take the target's.
        dtype: of the weights; None: the head's own.

    Raises:
        ConfigError: spans that the format has no words for.
    """
    config = head.config
    algorithm, architecture = ("dspark", "DSparkDraftModel") if config.is_dspark else ("dflash", "DFlashDraftModel")
    keys = speculators_keys(algorithm, architecture, config, config.num_depths, verifier) | {
        "target_hidden_size": config.target_hidden_size,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token,
        LAYER_IDS: list(hidden_layers),
        "sample_from_anchor": config.has_anchor_output,
        "sliding_window_non_causal": not _is_causal(config),
        "transformer_layer_config": layer_keys(config, [span.window for span in config.spans]),
    }
    if config.is_dspark:
        keys |= {
            "markov_rank": config.markov_rank,
            "markov_head_type": "vanilla",
            "enable_confidence_head": config.has_confidence,
            "confidence_head_with_markov": config.has_markov_confidence,
        }
    write_head(head, keys, folder, has_lm_head, has_embedding, dtype)


def _is_causal(config: BlockConfig) -> bool:
    """Whether the layers with a window are causal; those without one never are in this format."""
    kinds = {span.is_causal for span in config.spans if span.window is not None}
    windows = {span.window for span in config.spans if span.window is not None}
    if len(kinds) > 1 or len(windows) > 1 or any(s.is_causal and s.window is None for s in config.spans):
        raise ConfigError(f"the speculators format has one window, and causal blocks only with it; got {config.spans}")
    return kinds == {True}
