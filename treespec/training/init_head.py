"""A fresh head, and the weights that it takes from its target.

Axis letters: H the head's hidden size, L fused hidden states, V the target's vocabulary, W the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.heads.files.checkpoint import fuse_split
from treespec.heads.modules.base import Config
from treespec.hf.models.layers import decoder_layers
from treespec.training.head_learner import Head

SMALL = 0.1
"""The scale of random weights beside copied ones."""


@torch.no_grad()
def fresh_head(
    kind: Callable[[Config, Tensor, Tensor], Head],
    config: Config,
    model: PreTrainedModel,
    target_ids: Tensor,
    is_initialised: bool,
) -> Head:
    """A head in float32 with the target's embedding and output rows `target_ids` int64 [W].

    Other weights come from torch's default generator; with `is_initialised` the target's last layers and last norm are
    copied where the shapes fit, and `fc` passes the deepest of the fused states.
    """
    embedding = model.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    head = kind(config, embedding.detach().float(), target_ids).float()
    copy_output_rows(model, target_ids, head.lm_head)
    if is_initialised:
        pass_deepest(head.fc)
        for layer, weights in zip(head.layers, layer_weights(model, len(head.layers)), strict=False):
            copy_fitting(layer, weights)
        norm = getattr(getattr(model.base_model, "norm", None), "weight", None)
        if isinstance(norm, Tensor) and norm.shape == head.norm.weight.shape:
            head.norm.weight.copy_(norm)
    return head


@torch.no_grad()
def copy_output_rows(model: PreTrainedModel, target_ids: Tensor, lm_head: nn.Linear) -> None:
    """Copy the rows int64 [W] of the target's own output head to `lm_head`."""
    output = model.get_output_embeddings()
    rows = output.weight if output is not None else model.get_input_embeddings().weight
    assert isinstance(rows, Tensor)
    lm_head.weight.copy_(rows[target_ids.to(rows.device)])


def layer_weights(model: PreTrainedModel, num_layers: int) -> list[dict[str, Tensor]]:
    """The weights of the target's last `num_layers` layers, in order; empty for a model without a list of layers."""
    try:
        layers = decoder_layers(model)
    except UnsupportedModelError:
        return []
    return [dict(layer.state_dict()) for layer in list(layers)[-num_layers:]]


@torch.no_grad()
def copy_fitting(module: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Copy weights, in the files' names, that the module has in the same shape; returns their names."""
    try:
        given = fuse_split(weights)
    except KeyError:  # The target keeps its projections in one matrix.
        return []
    state = module.state_dict()
    fitting = [name for name, tensor in given.items() if name in state and state[name].shape == tensor.shape]
    for name in fitting:
        state[name].copy_(given[name])
    return fitting


@torch.no_grad()
def pass_deepest(fc: nn.Linear) -> None:
    """Let `fc` [H, L H] pass the last, deepest, of the fused states, and little of the others."""
    size = fc.weight.shape[0]
    if fc.weight.shape[1] % size == 0:
        fc.weight.mul_(SMALL)
        fc.weight[:, -size:] += torch.eye(size)
