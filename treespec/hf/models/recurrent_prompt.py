"""`RecurrentPromptScorer`: prompts with images or sounds for models that keep a state."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import DynamicCache

from treespec.errors import UnsupportedModelError
from treespec.hf.cache.caches import row_cache
from treespec.hf.introspect import ModelFacts
from treespec.hf.models.prompt import PromptInputs, position_offsets, without_last_token
from treespec.hf.models.recurrent_scorer import RecurrentScorer, Row
from treespec.protocols import Capability, HiddenStates


class RecurrentPromptScorer(RecurrentScorer):
    """A `RecurrentScorer` whose first `prefill` reads a given prompt in place of its ids.

    All rows are read in one pass, as by plain `generate`, then every row gets a cache of its own. A state cannot be cut
    back, so the prompts' last tokens, the first roots, are left out of that pass.

    Raises `UnsupportedModelError`: a row ends in an image or a sound.
    """

    def __init__(
        self, facts: ModelFacts, prompt: PromptInputs, capability: Capability, hidden_layers: Sequence[int] = ()
    ) -> None:
        super().__init__(facts, capability=capability, hidden_layers=hidden_layers)
        self._prompt: PromptInputs | None = prompt
        names = [f"{kind}_token_{suffix}" for kind in ("image", "video", "audio") for suffix in ("id", "index")]
        features = {getattr(facts.model.config, name, None) for name in names}
        if not features.isdisjoint(prompt.ids[:, -1].tolist()):
            raise UnsupportedModelError(f"{facts.name} cannot continue this prompt: a prompt must end in text")

    @torch.no_grad()
    def prefill(self, ids: Int[Tensor, "B P"], mask: Bool[Tensor, "B P"]) -> HiddenStates:
        """See `RecurrentScorer`. Raises `UnsupportedModelError`: see `row_cache`."""
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            return super().prefill(ids, mask)
        cache = DynamicCache(config=self.facts.model.config)
        inputs = prompt.model_inputs(self.facts.model, cache, 0)
        lengths = mask.sum(1)
        offsets = position_offsets(inputs.get("position_ids"), lengths.to(self.device))
        scores = self._run(self.facts.model, without_last_token(inputs, prompt.ids.shape[1]), has_last_logits_only=True)
        self._rows = [
            Row(row_cache(cache, number, length), length, None if offsets is None else offsets[..., [number]])
            for number, length in enumerate(lengths.tolist())
        ]
        return {layer: states * mask.unsqueeze(-1).to(states) for layer, states in scores.hidden_states.items()}
