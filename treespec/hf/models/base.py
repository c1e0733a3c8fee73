"""`ModelScorer`: what all scorers on a transformers model share, the model's facts and one forward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import TreespecError, UnsupportedModelError
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.introspect import ModelFacts, cache_in, input_device, model_facts, num_logits, pick_layers
from treespec.hf.weights import read_cost
from treespec.protocols import Capability, Scores


class ModelScorer:
    """The attributes of a `CausalScorer` on a transformers model; its mode and configuration do not change."""

    def __init__(
        self, model: PreTrainedModel | ModelFacts, capability: Capability, hidden_layers: Sequence[int]
    ) -> None:
        self.facts = model_facts(model)
        self.capability = capability
        self.hidden_layers = tuple(hidden_layers)

    @property
    def vocab_size(self) -> int:
        """The current size: a draft model may be resized after it was given."""
        return num_logits(self.facts.model)

    @property
    def device(self) -> torch.device:
        """The current device."""
        return input_device(self.facts.model)

    @property
    def num_weights(self) -> int:
        """The weights that a pass over the whole model reads in this process, see `read_cost`."""
        return read_cost(self.facts.weight_counts)

    def _run(
        self,
        forward: Callable[..., Any],
        inputs: dict[str, Any],
        position_ids: Int[Tensor, "*rows B F"] | None = None,
        has_last_logits_only: bool = False,
    ) -> Scores:
        """One pass of the model or its compiled form; `inputs`: tokens, cache and mask by its arguments' names.

        `position_ids` go to models that take some, if `inputs` has none.
        """
        options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if position_ids is not None and "position_ids" in self.facts.arguments:
            options["position_ids"] = position_ids
        if has_last_logits_only and "logits_to_keep" in self.facts.arguments:
            options["logits_to_keep"] = 1
        if self.hidden_layers:
            options["output_hidden_states"] = True
        with evaluation_mode(self.facts.model):
            output = forward(**inputs | options)
        self._check_cache(inputs, output)
        return Scores(output.logits, pick_layers(output, self.hidden_layers))

    def _check_cache(self, inputs: dict[str, Any], output: Any) -> None:
        given, returned = cache_in(inputs), cache_in(output)
        if given is not None and returned is not None and returned is not given:
            raise UnsupportedModelError(
                f"{self.facts.name} returns a cache of its own ({type(returned).__name__}), not the one that it "
                "was given: its tokens cannot be verified ahead"
            )

    def _check_nodes(self, tokens: Shaped[Tensor, "..."], parents: Shaped[Tensor, "..."], num_rows: int) -> None:
        if tokens.shape != parents.shape or tokens.ndim != 2 or len(tokens) != num_rows:
            got = f"tokens {list(tokens.shape)}, parents {list(parents.shape)}"
            raise TreespecError(f"expected int64 [{num_rows}, F] after prefill(), got {got}")
        # Before any rank waits for the others within the pass.
        self.facts.ranks.check("pass", lambda: (tokens.tolist(), parents.tolist()))

    def _check_single(self, num_nodes: int) -> None:
        if self.capability == Capability.PLAIN and num_nodes > 1:
            raise UnsupportedModelError(f"{self.facts.name} decodes one token at a time, got {num_nodes} nodes")
