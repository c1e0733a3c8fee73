"""EAGLE-3 heads in training (Li et al. 2025, section 3.1): unrolled on their own features.

Axis letters: B texts, T tokens, H the head's hidden size, L fused layers, V the target's vocabulary, W the draft's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.heads.modules.eagle3 import Eagle3Config, Eagle3Head, unroll
from treespec.hf.introspect import num_logits
from treespec.training.data import Batch
from treespec.training.head_learner import HeadLearner, fresh_head
from treespec.training.head_shape import head_layer, layer_weights
from treespec.training.objective import Draft
from treespec.training.options import TrainingConfig


class EagleLearner(HeadLearner[Eagle3Head]):
    """An EAGLE-3 head for `Objective`; `num_depths` steps are unrolled."""

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`. The feature of a text's first token is that of the draft from the second one."""
        dtype = self.head.fc.weight.dtype
        features = self.head.fuse(batch.states[:, :-1].to(dtype))
        num_depths = min(self.num_depths, features.shape[1])
        drafts = []
        for depth, outputs in enumerate(unroll(self.head, batch.tokens[:, 1:], features, num_depths)):
            texts, starts = batch.is_asked[:, 1 + depth :].nonzero(as_tuple=True)
            drafts.append(Draft(outputs[texts, starts], texts, starts + 1))
        return drafts


def make_eagle(
    model: PreTrainedModel, target_ids: Tensor, hidden_layers: Sequence[int], config: TrainingConfig
) -> EagleLearner:
    """A fresh head for a target; draws from torch's default generator.

    Raises:
        UnsupportedModelError: see `fresh_head`.
    """
    layer = head_layer(model)
    shape = Eagle3Config(
        layer,
        vocab_size=num_logits(model),
        draft_vocab_size=len(target_ids),
        target_hidden_size=layer.hidden_size,
        num_features=len(hidden_layers),
        num_layers=config.layers,
        has_feature_norms=config.has_feature_norms,
        hidden_layers=tuple(hidden_layers),
    )
    head = fresh_head(Eagle3Head, shape, model, target_ids, config.is_initialised)
    if config.is_initialised:
        for weights in layer_weights(model, config.layers)[:1]:
            _widen(head.layers[0], weights)
    return EagleLearner(head, hidden_layers, config.depths, config.is_head_frozen)


@torch.no_grad()
def _widen(layer: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """The first layer's q, k and v and its norm of the feature, from the target's layer that became the first.

    It reads the token's embedding beside the feature; the target's layer knows the feature alone, so what reads the
    embedding starts small and at random.
    """
    names = [f"self_attn.{name}_proj.weight" for name in "qkv"]
    wide, norm = layer.get_parameter("self_attn.qkv_proj.weight"), weights.get("input_layernorm.weight")
    if all(name in weights for name in names):
        plain = torch.cat([weights[name] for name in names])
        if wide.shape == (len(plain), 2 * plain.shape[1]):
            wide[:, plain.shape[1] :] = plain
            wide[:, : plain.shape[1]] *= 0.5
    if norm is not None and norm.shape == layer.get_parameter("hidden_norm.weight").shape:
        layer.get_parameter("hidden_norm.weight").copy_(norm)
        layer.get_parameter("input_layernorm.weight").fill_(1)
