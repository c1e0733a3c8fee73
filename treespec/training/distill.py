"""A draft model distilled from its target: some of the target's own layers, taught its distributions (Hinton et al.
2015).

Axis letters: B texts, T tokens, H the hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.training.data import Batch
from treespec.training.objective import Draft
from treespec.training.options import TrainingConfig
from treespec.training.pruned import freeze_vocabulary, prune, spread_layers

NUM_CHECKED = 16
"""So many tokens' logits show whether a model does anything with them."""


class DraftModelLearner(nn.Module):
    """A draft model for `Objective`. Its distribution hangs on the text alone, so one depth is as good as all.

    Args:
        model: in float32.
        num_depths: of chains in the evaluation.

    Raises:
        UnsupportedModelError: the model's logits are not plain products of its last hidden states.
    """

    def __init__(self, model: PreTrainedModel, num_depths: int) -> None:
        super().__init__()
        self.model, self.num_depths = model, num_depths
        self._check()

    @property
    def target_ids(self) -> Tensor:
        """See `Learner`: all tokens."""
        return torch.arange(len(self.output_weight), device=self.output_weight.device)

    @property
    def output_weight(self) -> Tensor:
        """See `Learner`."""
        weight = getattr(self.model.get_output_embeddings(), "weight", None)
        if not isinstance(weight, Tensor):
            raise UnsupportedModelError(f"{type(self.model).__name__} has no output head that can be distilled")
        return weight

    @property
    def reads(self) -> dict[str, Any]:
        """See `Learner`: tokens alone."""
        return {}

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`; the first depth alone with a generator."""
        states = self._states(batch.tokens)
        drafts = []
        for depth in range(self.num_depths if generator is None else 1):
            texts, anchors = batch.is_asked[:, depth:].nonzero(as_tuple=True)
            drafts.append(Draft(states[texts, anchors + depth], texts, anchors))
        return drafts

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the model as transformers does."""
        twin: Any = copy.deepcopy(self.model)
        twin.to(dtype).save_pretrained(folder)

    def _states(self, tokens: Tensor) -> Tensor:
        """What the output head reads, [B, T, H]."""
        return self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state

    @torch.no_grad()
    def _check(self) -> None:
        weight = self.output_weight
        # Many tokens, for the padding token's embedding may be zero.
        tokens = torch.arange(0, len(weight), len(weight) // NUM_CHECKED + 1, device=weight.device).unsqueeze(0)
        logits = nn.functional.linear(self._states(tokens), weight)
        if not torch.allclose(self.model(input_ids=tokens, use_cache=False).logits, logits, atol=1e-3, rtol=1e-3):
            raise UnsupportedModelError(f"{type(self.model).__name__} changes its logits behind the output head")


def make_draft_model(model: PreTrainedModel, config: TrainingConfig) -> DraftModelLearner:
    """Some of a target's layers at even distances, to be distilled; the vocabulary's rows stay as they are.

    Raises:
        ConfigError: more layers are asked for than the target has.
        UnsupportedModelError: the target cannot be cut, or see `DraftModelLearner`.
    """
    count = model.config.get_text_config().num_hidden_layers
    if config.num_layers is not None and config.num_layers > count:
        raise ConfigError(f"num_layers must be at most the target's {count}, got {config.num_layers}")
    pruned = prune(model, spread_layers(count, min(config.layers, count))).float()
    if config.is_head_frozen:
        freeze_vocabulary(pruned)
    return DraftModelLearner(pruned, config.depths)
