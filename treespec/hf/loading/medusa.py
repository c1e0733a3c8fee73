"""Medusa heads from files, fitted to their target."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.heads.files.config import config_in
from treespec.heads.medusa.drafter import Medusa
from treespec.hf.introspect import model_facts
from treespec.hf.loading.formats import Format
from treespec.hf.weights import whole_weight

FILES, KEYS = "medusa_lm_head.*", {"medusa_num_heads", "medusa_num_layers", "medusa_choices"}


def is_medusa(source: Any) -> bool:
    """Whether a file or folder holds Medusa heads, by the name of the weights or the configuration."""
    if not isinstance(source, Path):
        return False
    if source.match(FILES) or any(source.glob(FILES)):
        return True
    config = config_in(source)
    return config.get("model_type") == "medusa" or not KEYS.isdisjoint(config)


def load_medusa(source: str | Path, target: PreTrainedModel, max_length: int | None = None) -> Medusa:
    """The drafter of Medusa heads for `target`, whose output weights they take where the files have none.

    Raises `CheckpointError`: see `load_heads`; `ConfigError`: `max_length`, as the heads read one state and no text.
    """
    if max_length is not None:
        raise ConfigError(f"Medusa heads read no text: leave out {max_length=}")
    model = model_facts(target).model
    return Medusa.load(source, whole_weight(model.get_output_embeddings() or model.get_input_embeddings()))


FORMAT = Format(is_medusa, load_medusa)
