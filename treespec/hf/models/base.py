"""`ModelScorer`: what scorers on a transformers model share, the model's facts and one pass of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.hf.introspect import input_device, num_logits, pick_layers
from treespec.protocols import Capability, Scores


class ModelScorer:
    """A transformers model with what a `CausalScorer` tells of it; how its cache is kept is left to the children."""

    def __init__(self, model: PreTrainedModel, capability: Capability, hidden_layers: Sequence[int]) -> None:
        """Wrap a model; its weights, mode and configuration stay as they are."""
        self._model = model
        self._capability = capability
        self._hidden_layers = tuple(hidden_layers)
        self._arguments = frozenset(inspect.signature(model.forward).parameters)
        self._device = input_device(model)

    @property
    def capability(self) -> Capability:
        return self._capability

    @property
    def vocab_size(self) -> int:
        return num_logits(self._model)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self._hidden_layers

    @property
    def device(self) -> torch.device:
        """Where token ids are expected; logits come back there too."""
        return self._device

    def _run(
        self, forward: Callable[..., Any], inputs: dict[str, Any], position_ids: Tensor, has_last_logits_only: bool
    ) -> Scores:
        """One pass.

        Args:
            forward: the model, or a compiled form of it.
            inputs: the tokens int64 [B, F], the cache and the mask by the names of the model's arguments.
            position_ids: int64 [B, F], for models that take them.
            has_last_logits_only: of the last node, from models that can leave out the others.
        """
        options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if "position_ids" in self._arguments:
            options["position_ids"] = position_ids
        if has_last_logits_only and "logits_to_keep" in self._arguments:
            options["logits_to_keep"] = 1
        if self._hidden_layers:
            options["output_hidden_states"] = True
        output = forward(**inputs, **options)
        return Scores(output.logits, pick_layers(output, self._hidden_layers))
