"""What a fresh head takes from its target.

Axis letters: H the head's hidden size, V the target's vocabulary, W the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.heads.files.checkpoint import fuse_split

SMALL = 0.1
"""What random weights beside taken ones are scaled by."""


def embedding_of(model: PreTrainedModel) -> Tensor:
    """The target's input embedding [V, H], float32."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.detach().float()


@torch.no_grad()
def copy_output_rows(model: PreTrainedModel, target_ids: Tensor, lm_head: nn.Linear) -> None:
    """Give `lm_head` the rows int64 [W] of the target's own output head."""
    output = model.get_output_embeddings()
    rows = output.weight if output is not None else model.get_input_embeddings().weight
    assert isinstance(rows, Tensor)
    lm_head.weight.copy_(rows[target_ids.to(rows.device)])


@torch.no_grad()
def copy_fitting(module: nn.Module, weights: Mapping[str, Tensor]) -> list[str]:
    """Copy those weights in the files' names that the module has in the same shape; returns their names."""
    try:
        given = fuse_split(weights)
    except KeyError:  # Projections that the target keeps in one matrix of its own.
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
