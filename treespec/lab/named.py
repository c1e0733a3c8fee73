"""Drafters by the names that commands and setting files have for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.data import SHIPPED_FOR
from treespec.drafters.lookup.warm_start import WarmStart
from treespec.drafters.registry import DRAFTERS
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.files.fitting import shipped_head
from treespec.hf.loading.drafters import make_draft_model
from treespec.hf.loading.formats import format_of
from treespec.hf.loading.heads import load_drafter
from treespec.hf.loading.models import load_model, load_tokenizer, quiet_transformers

LOOKUPS = ("recycling", "suffix")
"""The default drafters of models without shipped ones."""
SHIPPED = ("head", "warm")
"""Drafters that come with treespec, for one model."""


def default_drafters(model_name: str) -> tuple[str, ...]:
    """The names of the default drafters of the model of that name or folder."""
    return SHIPPED if Path(model_name).name.lower() == SHIPPED_FOR.lower() else LOOKUPS


def named_drafters(
    names: Sequence[str], model: PreTrainedModel, tokenizer: Any, model_name: str, parts: dict[str, Any] | None = None
) -> list[Any]:
    """The drafters that these names stand for, for `TreeSpeculation`, which merges them.

    Args:
        names: "recycling", "suffix" and what else is in `DRAFTERS`; "mtp", see `load_mtp`; a warm start,
            `*.safetensors`; a draft model or a trained head by hub name or folder; "head" and "warm", which ship for
            SmolLM2-135M-Instruct.
        model: the target.
        tokenizer: the target's, for draft models with another vocabulary.
        model_name: the target's name or folder.
        parts: draft models and heads that were loaded before, by name; what is loaded is added.

    Raises:
        ConfigError: a drafter that ships for another model, or a draft model that needs the missing tokenizer.
        CheckpointError: nothing there, or it cannot be read.
    """
    parts = {} if parts is None else parts
    return [drafter for name in names for drafter in _named(name, model, tokenizer, model_name, parts)]


def _named(name: str, model: PreTrainedModel, tokenizer: Any, model_name: str, parts: dict[str, Any]) -> list[Any]:
    if name in DRAFTERS:
        return [DRAFTERS[name]()]
    if name in SHIPPED and default_drafters(model_name) != SHIPPED:
        raise ConfigError(
            f"the drafter {name!r} ships for {SHIPPED_FOR} only: give a file or a folder for your model, {model_name}"
        )
    if name == "warm":
        return WarmStart.shipped(SHIPPED_FOR).drafters()
    if Path(name).suffix == ".safetensors":
        return WarmStart.load(name).drafters()
    if name not in parts:
        with quiet_transformers():
            parts[name] = _load(shipped_head(SHIPPED_FOR) if name == "head" else name, model, tokenizer)
    return [parts[name]]


def _load(name: Any, model: PreTrainedModel, tokenizer: Any) -> Any:
    """A trained head, or a draft model."""
    try:
        return load_drafter(name, model)
    except CheckpointError:
        if format_of(name):
            raise
        # Not a head; loading it as a model gives the error that names the files.
        draft: Any = load_model(str(name)).eval()
    draft.to(model.device)
    if draft.config.get_text_config().vocab_size == model.config.get_text_config().vocab_size:
        return draft
    if tokenizer is None:
        raise ConfigError(f"the draft model {name} has another vocabulary than the target: give tokenizer= too")
    return make_draft_model(draft, tokenizer=load_tokenizer(str(name)), target_tokenizer=tokenizer)
