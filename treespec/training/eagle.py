"""EAGLE-3 heads in training (Li et al. 2025, section 3.1): unrolled on their own features.

Axis letters: B texts, T tokens, H the head's hidden size, L fused layers, V the target's vocabulary, W the draft's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.heads.eagle3 import Eagle3Config, Eagle3Head, unroll_outputs
from treespec.heads.export import save_head
from treespec.hf.facts import num_logits
from treespec.hf.head_shape import final_norm, head_layer, layer_weights
from treespec.training.data import Batch
from treespec.training.objective import Draft
from treespec.training.options import TrainingConfig
from treespec.training.start import copy_fitting, copy_output_rows, embedding_of, pass_deepest


class EagleLearner(nn.Module):
    """An EAGLE-3 head for `Objective`.

    Args:
        head: in float32.
        hidden_layers: the target's hidden states that it fuses.
        num_depths: how many steps are unrolled.
        is_head_frozen: its output rows are the target's, and are left out of its files.
    """

    def __init__(self, head: Eagle3Head, hidden_layers: Sequence[int], num_depths: int, is_head_frozen: bool) -> None:
        super().__init__()
        self.head, self.num_depths = head, num_depths
        self._hidden_layers, self._is_head_frozen = tuple(hidden_layers), is_head_frozen
        head.lm_head.requires_grad_(not is_head_frozen)

    @property
    def target_ids(self) -> Tensor:
        """See `Learner`."""
        return self.head.target_ids

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`. The feature of a text's first token is that of the draft from the second one."""
        dtype = self.head.fc.weight.dtype
        features = self.head.fuse(batch.states[:, :-1].to(dtype))
        num_depths = min(self.num_depths, features.shape[1])
        drafts = []
        for depth, outputs in enumerate(unroll_outputs(self.head, batch.tokens[:, 1:], features, num_depths)):
            texts, starts = batch.is_asked[:, 1 + depth :].nonzero(as_tuple=True)
            drafts.append(Draft(outputs[texts, starts], texts, starts + 1))
        return drafts

    @property
    def output_weight(self) -> Tensor:
        """See `Learner`."""
        return self.head.lm_head.weight

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the head in the speculators format."""
        has_head = not self._is_head_frozen
        save_head(self.head, self._hidden_layers, folder, name, has_lm_head=has_head, dtype=dtype)


def make_eagle(
    model: PreTrainedModel, target_ids: Tensor, hidden_layers: Sequence[int], config: TrainingConfig
) -> EagleLearner:
    """A fresh head for a target; draws from torch's default generator."""
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
    head = Eagle3Head(shape, embedding_of(model), target_ids).float()
    copy_output_rows(model, target_ids, head.lm_head)
    if config.is_initialised:
        _start_from(model, head)
    return EagleLearner(head, hidden_layers, config.depths, config.is_head_frozen)


@torch.no_grad()
def _start_from(model: PreTrainedModel, head: Eagle3Head) -> None:
    """The target's last layers and norm; the deepest of the fused states goes through unchanged.

    The first layer reads the token's embedding beside the feature; the target's layer knows the feature alone, so what
    reads the embedding starts small and at random.
    """
    pass_deepest(head.fc)
    for layer, weights in zip(head.layers, layer_weights(model, len(head.layers)), strict=False):
        copy_fitting(layer, weights)
        if layer is head.layers[0]:
            _widen(layer, weights)
    norm = final_norm(model)
    if norm is not None and norm.shape == head.norm.weight.shape:
        head.norm.weight.copy_(norm)


def _widen(layer: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """The first layer's q, k and v and its norm of the feature, from a plain layer's."""
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
