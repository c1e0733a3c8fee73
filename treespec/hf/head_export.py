"""Trained heads written anew, whole, for readers that take nothing from the target."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from treespec.drafters.block import BlockDrafter
from treespec.errors import ConfigError
from treespec.heads.dflash_export import save_block
from treespec.heads.eagle3_export import save_eagle3
from treespec.hf.heads import load_drafter

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def dtype_of(name: str) -> torch.dtype:
    """Raises: ConfigError, not one of `DTYPES`."""
    if name not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]


def export_head(
    name: str | Path, target: PreTrainedModel, out: str | Path, dtype: torch.dtype = torch.float16, has_all: bool = True
) -> None:
    """Write a trained head in the speculators library's format, which vLLM reads too.

    Args:
        name, target: see `load_drafter`.
        out: the folder to write.
        dtype: of the weights.
        has_all: with the output rows and the embedding, which `load_drafter` can take from the target.

    Raises:
        CheckpointError, ConfigError: see `load_drafter`.
    """
    drafter = load_drafter(name, target)
    layers, verifier = drafter.hidden_layers, getattr(target.config, "_name_or_path", None) or None
    if isinstance(drafter, BlockDrafter):
        save_block(drafter.head, layers, out, verifier, has_lm_head=has_all, has_embedding=has_all, dtype=dtype)
    else:
        save_eagle3(drafter.head, layers, out, verifier, has_lm_head=has_all, has_embedding=has_all, dtype=dtype)
