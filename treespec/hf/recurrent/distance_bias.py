"""Inkling's attention in a tree pass: biases by distance, and query temperatures, of positions.

transformers' layer counts the slots of its cache, where siblings have neighbouring ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.hf.attention.mask import TreeAttention
from treespec.hf.introspect import ModelFacts
from treespec.hf.recurrent.operators import calls
from treespec.hf.thread_patches import current, replaced


class DistanceBiases:
    """The attention layers of a model that count distances in slots, found by what they call; false without any."""

    def __init__(self, facts: ModelFacts) -> None:
        names = {"rel_logits_proj", "q_norm", "log_scaling_n_floor"}
        self._modules: list[Any] = [one for one in facts.modules.values() if names <= calls(type(one))[0]]

    def __bool__(self) -> bool:
        return bool(self._modules)

    @contextmanager
    def running(self, attention: TreeAttention, num_padding: Int[Tensor, "B 1"]) -> Iterator[None]:
        """Inside a pass over these nodes counts positions; temperatures count a prompt's padding, as plain ones do."""
        positions, keys = attention.position_ids, attention.key_positions
        if not self or keys is None:
            yield
            return
        slots = torch.arange(keys.shape[1], device=keys.device)[-positions.shape[-1] :]
        distances = positions.unsqueeze(2) - keys.unsqueeze(1)
        with ExitStack() as stack:
            for module in self._modules:
                scale = _temperature(module, positions + num_padding.to(positions.device)) / _temperature(module, slots)
                own = current(module.q_norm, "forward")
                stack.enter_context(replaced(module.q_norm, "forward", partial(_tempered, own, scale)))
                bias = partial(_bias, module.rel_logits_proj, distances, scale)
                stack.enter_context(replaced(module.rel_logits_proj, "forward", bias))
            yield


def _temperature(module: Any, numbers: Int[Tensor, "*B F"]) -> Float[Tensor, "*B F"]:
    """The layer's factors of attention scores at positions or slots; 1 in sliding layers."""
    floor = None if module.is_sliding else module.config.log_scaling_n_floor
    if floor is None:
        return torch.ones_like(numbers, dtype=torch.float32)
    return 1 + module.config.log_scaling_alpha * ((numbers + 1).float() / floor).clamp(min=1.0).log()


def _tempered(own: Any, scale: Float[Tensor, "B F"], queries: Float[Tensor, "B F A d"]) -> Float[Tensor, "B F A d"]:
    """The layer multiplies by the slots' temperatures afterwards, which are divided out here."""
    return (own(queries) * scale.to(queries.device)[..., None, None]).to(queries.dtype)


def _bias(
    module: Any,
    distances: Int[Tensor, "B F K"],
    scale: Float[Tensor, "B F"],
    relative_states: Float[Tensor, "B F A r"],
    *_: Any,
) -> Float[Tensor, "B A F K"]:
    """Replaces the forward of `InklingRelativeLogits`."""
    distances, size = distances.unsqueeze(1).to(relative_states.device), module.rel_extent
    by_distance = (relative_states @ module.proj).transpose(1, 2)
    index = distances.clamp(0, size - 1).expand(-1, by_distance.shape[1], -1, -1)
    found = by_distance.gather(-1, index) * scale.to(distances.device)[:, None, :, None]
    return found.to(by_distance.dtype).masked_fill((distances < 0) | (distances >= size), 0.0)
