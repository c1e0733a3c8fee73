"""Facts of a model that its configuration does not tell."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.protocols import HiddenStates


def check_model(model: object) -> None:
    """Raise `ConfigError` for what is no model."""
    # Not `PreTrainedModel`: wrappers of one (compiled, adapted) will do.
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise ConfigError(
            f"expected a transformers model, got {type(model).__name__}: load it first with "
            "AutoModelForCausalLM.from_pretrained"
        )


def plain_model(model: Any) -> Any:
    """The model itself, where `torch.compile` has wrapped it."""
    return getattr(model, "_orig_mod", model)


def input_device(model: PreTrainedModel) -> torch.device:
    """The device of the input embedding; offloaded weights lie on no device, their accelerate hook knows where to."""
    embedding = model.get_input_embeddings()
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return next(embedding.parameters()).device if device is None else torch.device(device)


def num_logits(model: PreTrainedModel) -> int:
    """V: how many logits the model's head gives, which is more than `config.vocab_size` where the head is padded."""
    head = model.get_output_embeddings()
    if head is None:  # A model that does not tell which module its head is.
        return model.config.get_text_config().vocab_size
    return getattr(head, "out_features", None) or next(head.parameters()).shape[0]


def position_table_size(model: PreTrainedModel) -> int | None:
    """How many positions a model's learned or precomputed table has, None when it has no such table."""
    sizes = []
    tokens = model.get_input_embeddings()
    for name, module in model.named_modules():
        is_position = "wpe" in name.rsplit(".", 1)[-1] or "position" in name.rsplit(".", 1)[-1]
        if is_position and isinstance(module, torch.nn.Embedding) and module is not tokens:
            sizes.append(module.num_embeddings - getattr(module, "offset", 0))
        table = getattr(module, "embed_positions", None)
        if isinstance(table, Tensor):
            sizes.append(table.shape[0])
    return min(sizes, default=None)


def cache_argument(model: PreTrainedModel) -> str:
    """The name under which a model's forward takes its cache.

    Raises:
        UnsupportedModelError: it takes no transformers cache.
    """
    arguments = inspect.signature(model.forward).parameters
    for name in ("past_key_values", "cache_params"):
        if name in arguments:
            return name
    raise UnsupportedModelError(
        f"{type(model).__name__} takes no transformers cache (neither past_key_values nor cache_params): its tokens "
        "cannot be verified ahead"
    )


def pick_layers(output: Any, layers: Sequence[int]) -> HiddenStates:
    """The hidden states of `layers` from a model's output; see `HiddenStates`.

    Raises:
        UnsupportedModelError: the model returns none.
        ConfigError: there is no such layer.
    """
    if not layers:
        return {}
    states = getattr(output, "hidden_states", None)
    if states is None:
        raise UnsupportedModelError("the model returns no hidden states, which the drafter reads")
    missing = [layer for layer in layers if not -len(states) <= layer < len(states)]
    if missing:
        raise ConfigError(f"the drafter reads the hidden states {missing} of a model that has {len(states)}")
    return {layer: states[layer] for layer in layers}
