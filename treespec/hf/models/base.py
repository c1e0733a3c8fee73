"""`ModelScorer`: what all scorers on a transformers model share, the model's facts and one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.hf.introspect import ModelFacts, evaluation_mode, model_facts, pick_layers
from treespec.protocols import Capability, Scores


class ModelScorer:
    """The properties of a `CausalScorer` on a transformers model; the subclasses add the cache.

    The model's weights, mode and configuration stay as they are; passes run in evaluation mode.
    """

    def __init__(
        self, model: PreTrainedModel | ModelFacts, capability: Capability, hidden_layers: Sequence[int]
    ) -> None:
        self.facts = model_facts(model)
        self._capability = capability
        self._hidden_layers = tuple(hidden_layers)

    @property
    def capability(self) -> Capability:
        return self._capability

    @property
    def vocab_size(self) -> int:
        return self.facts.num_logits

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self._hidden_layers

    @property
    def device(self) -> torch.device:
        """Where token ids are expected; logits come back there too."""
        return self.facts.device

    def _run(
        self,
        forward: Callable[..., Any],
        inputs: dict[str, Any],
        position_ids: Int[Tensor, "B F"],
        has_last_logits_only: bool,
    ) -> Scores:
        """One pass.

        Args:
            forward: the model, or its compiled form.
            inputs: tokens, cache and mask by the names of the model's arguments.
            position_ids: for models that take them.
            has_last_logits_only: compute the logits of the last node only, where the model can.
        """
        options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if "position_ids" in self.facts.arguments:
            options["position_ids"] = position_ids
        if has_last_logits_only and "logits_to_keep" in self.facts.arguments:
            options["logits_to_keep"] = 1
        if self._hidden_layers:
            options["output_hidden_states"] = True
        with evaluation_mode(self.facts.model):
            output = forward(**inputs, **options)
        return Scores(output.logits, pick_layers(output, self._hidden_layers))
