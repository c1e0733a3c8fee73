"""A draft model cut out of its target: the same model with fewer decoder layers, to be distilled."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.hf.models.layers import decoder_layers


def prune(model: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A copy of a model with only some of its decoder layers, from 0, in this order.

    Raises:
        ConfigError: no layer, or one that the model does not have.
        UnsupportedModelError: the model has no list of decoder layers, or its kind cannot have other ones.
    """
    stack = decoder_layers(model)
    if not layers or not all(0 <= layer < len(stack) for layer in layers):
        raise ConfigError(f"{type(model).__name__} has the layers 0 to {len(stack) - 1}, asked for {list(layers)}")
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = len(layers)
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[layer] for layer in layers]
    kind: Any = type(model)
    pruned = kind(config)
    prefix = next(name for name, module in model.named_modules() if module is stack)
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(f"{prefix}.")}
    for new, old in enumerate(layers):
        own |= {f"{prefix}.{new}.{name}": tensor for name, tensor in stack[old].state_dict().items()}
    try:
        pruned.load_state_dict(own)
    except RuntimeError as error:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be cut to {list(layers)}: {error}") from error
    pruned.generation_config = copy.deepcopy(model.generation_config)
    return pruned.to(device=model.device, dtype=model.dtype).eval()


def spread_layers(num_layers: int, num_kept: int) -> list[int]:
    """`num_kept` of a model's layers at even distances, the first and the last among them."""
    if num_kept == 1:
        return [0]
    return [round(i * (num_layers - 1) / (num_kept - 1)) for i in range(num_kept)]


def freeze_vocabulary(model: PreTrainedModel) -> None:
    """Leave the embedding and the output head as they are in training."""
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if isinstance(module, nn.Module):
            module.requires_grad_(False)
