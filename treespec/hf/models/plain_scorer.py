"""`PlainScorer`: single tokens, scored by exactly the passes of plain `generate`.

For models whose numbers depend on the grouping of tokens into passes so much that any other grouping gives other texts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import Cache, DynamicCache

from treespec.errors import TreespecError
from treespec.hf.attention.rope_lengths import RopeByLength
from treespec.hf.cache.caches import is_filled, prefix_length
from treespec.hf.evaluation import evaluation_mode
from treespec.hf.introspect import ModelFacts, pick_layers
from treespec.hf.models.base import ModelScorer
from treespec.hf.models.prompt import PromptInputs
from treespec.protocols import Capability, Scores


class PlainScorer(ModelScorer):
    """A model as a `CausalScorer` of single tokens, by the prompt pass and the single-token passes of `generate`.

    The model's own methods prepare every pass. Rows that have stopped stay in the passes, as they do there.

    Args:
        prompt: what `prefill` reads in place of its ids.
        hidden_layers, cache: see `TreeScorer`.
    """

    def __init__(
        self, facts: ModelFacts, prompt: PromptInputs, hidden_layers: Sequence[int] = (), cache: Cache | None = None
    ) -> None:
        super().__init__(facts, Capability.PLAIN, hidden_layers)
        self.max_positions = facts.max_positions
        self._prompt = prompt
        self._given_cache = cache if cache is not None and is_filled(cache) else None
        self._ids = prompt.ids
        self._arguments: dict[str, Any] = {}
        self._rows: list[int] = []
        self._rope = RopeByLength(facts.model, facts.modules)

    @property
    def cache(self) -> Cache | None:
        """The transformers cache, of all rows of the prompt; None before `prefill`."""
        return self._arguments.get(self.facts.cache_argument)

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> Scores:
        """See `CausalScorer`; reads the prompt that was given.

        Raises `UnsupportedModelError`: a given cache is not one of a prefix of the prompt.
        """
        given, self._given_cache = self._given_cache, None
        num_cached = 0 if given is None else prefix_length(given, *ids.shape)
        cache = DynamicCache(config=self.facts.model.config) if given is None else given
        self._arguments = {**self._prompt.arguments, self.facts.cache_argument: cache, "use_cache": True}
        self._ids, self._rows = self._prompt.ids, list(range(len(ids)))
        num_new = self._ids.shape[1] - num_cached if num_cached else None
        scores = self._pass(next_sequence_length=num_new, is_first_iteration=True)
        return scores._replace(logits=scores.logits[:, -1:])

    @torch.no_grad()
    def extend(self, tokens: Int[Tensor, "B F"], parents: Int[Tensor, "B F"]) -> Scores:
        """See `CausalScorer`. Raises `UnsupportedModelError`: more than one node."""
        self._check_nodes(tokens, parents, len(self._rows))
        self._check_single(tokens.shape[1])
        fresh = self._ids.new_zeros(len(self._ids), 1)
        fresh[self._rows] = tokens.to(fresh.device)
        self._ids = torch.cat([self._ids, fresh], dim=1)
        scores = self._pass(next_sequence_length=1)
        states = {layer: state[self._rows] for layer, state in scores.hidden_states.items()}
        return Scores(scores.logits[self._rows], states)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """See `CausalScorer`. Raises `TreespecError`: a row drops its token, which no state gives back."""
        if any(list(path) != [0] for path in paths):
            raise TreespecError(
                f"plain passes keep every token they scored, got paths {[list(path) for path in paths]}"
            )

    def select_rows(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def _pass(self, **options: Any) -> Scores:
        model: Any = self.facts.model
        inputs = model.prepare_inputs_for_generation(self._ids, **options, **self._arguments)
        states = {"output_hidden_states": True} if self.hidden_layers else {}
        with evaluation_mode(model), self._rope.apart():
            output = model(**{**inputs, **states, "return_dict": True})
        self._arguments = model._update_model_kwargs_for_generation(output, self._arguments, is_encoder_decoder=False)
        return Scores(output.logits, pick_layers(output, self.hidden_layers))
