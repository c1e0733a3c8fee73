"""A draft model distilled from its target (Hinton et al. 2015): some of the target's own layers, trained to give its
distributions."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, UnsupportedModelError
from treespec.training.data import Batch
from treespec.training.features import decoder_layers
from treespec.training.objective import Draft, Learner
from treespec.training.options import BLOCKS_ONLY, TrainingConfig, TrainingKind
from treespec.training.text.texts import Texts

NUM_CHECKED = 16
"""Tokens on which a model's logits are compared with plain products of its hidden states."""


class DraftModelLearner(Learner):
    """A draft model, in float32, for `Objective`. It reads the text alone, so training at one depth trains all.

    Raises `UnsupportedModelError`: the model's logits are not plain products of its last hidden states.
    """

    def __init__(self, model: PreTrainedModel, num_depths: int) -> None:
        super().__init__()
        self.model, self.num_depths, self.reads = model, num_depths, {}
        self.target_ids = torch.arange(len(self.output_weight), device=self.output_weight.device)
        self._check()

    @property
    def output_weight(self) -> Tensor:
        weight = getattr(self.model.get_output_embeddings(), "weight", None)
        if not isinstance(weight, Tensor):
            raise UnsupportedModelError(f"{type(self.model).__name__} has no output head that can be distilled")
        return weight

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`; with a generator the first depth alone."""
        states = self._states(batch.tokens)
        drafts = []
        for depth in range(self.num_depths if generator is None else 1):
            texts, anchors = batch.is_generated[:, depth:].nonzero(as_tuple=True)
            drafts.append(Draft(states[texts, anchors + depth], texts, anchors))
        return drafts

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the model as transformers does."""
        cast: Any = copy.deepcopy(self.model)
        cast.to(dtype).save_pretrained(folder)

    def _states(self, tokens: Tensor) -> Tensor:
        """The output head's input, [B, T, H]."""
        return self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state

    @torch.no_grad()
    def _check(self) -> None:
        weight = self.output_weight
        # Several tokens, as the padding token's embedding may be zero.
        tokens = torch.arange(0, len(weight), len(weight) // NUM_CHECKED + 1, device=weight.device).unsqueeze(0)
        logits = nn.functional.linear(self._states(tokens), weight)
        if not torch.allclose(self.model(input_ids=tokens, use_cache=False).logits, logits, atol=1e-3, rtol=1e-3):
            raise UnsupportedModelError(f"{type(self.model).__name__} changes its logits after the output head")


def _make(model: PreTrainedModel, texts: Texts, config: TrainingConfig) -> DraftModelLearner:
    """Some of a target's layers at even distances; the vocabulary's rows are not trained."""
    count = model.config.get_text_config().num_hidden_layers
    if config.num_layers is not None and config.num_layers > count:
        raise ConfigError(f"num_layers must be at most the target's {count}, got {config.num_layers}")
    pruned = prune(model, spread_layers(count, min(config.layers, count))).float()
    for module in (pruned.get_input_embeddings(), pruned.get_output_embeddings()):
        if isinstance(module, nn.Module):
            module.requires_grad_(False)
    return DraftModelLearner(pruned, config.depths)


def prune(model: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """A copy with only these decoder layers, from 0, in this order. Raises `UnsupportedModelError`: impossible."""
    stack = decoder_layers(model)
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = len(layers)
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[layer] for layer in layers]
    kind: Any = type(model)
    pruned = kind(config)
    prefix = next(name for name, module in model.named_modules() if module is stack)
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(f"{prefix}.")}
    for new, old in enumerate(layers):
        weights |= {f"{prefix}.{new}.{name}": tensor for name, tensor in stack[old].state_dict().items()}
    try:
        pruned.load_state_dict(weights)
    except RuntimeError as error:
        raise UnsupportedModelError(f"{type(model).__name__} cannot be cut to {list(layers)}: {error}") from error
    pruned.generation_config = copy.deepcopy(model.generation_config)
    return pruned.to(device=model.device, dtype=model.dtype).eval()


def spread_layers(num_layers: int, num_kept: int) -> list[int]:
    """`num_kept` of a model's layers at even distances, the first and the last among them."""
    return [round(i * (num_layers - 1) / max(num_kept - 1, 1)) for i in range(num_kept)]


UNUSED = ("draft_vocab_size", "hidden_layers", "is_initialised", "noise", *BLOCKS_ONLY)
LOAD = 'AutoModelForCausalLM.from_pretrained("THIS FOLDER")'
KIND = TrainingKind("Draft model", _make, num_depths=4, num_layers=5, unused=UNUSED, is_model=True, load=LOAD)
