"""What the training of all draft heads has in common: a fresh head in its target's likeness, and its files.

Axis letters: W the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import UnsupportedModelError
from treespec.heads.files.export import save_head
from treespec.heads.modules.base import Config, HeadConfig
from treespec.heads.modules.dflash import DFlashHead
from treespec.heads.modules.eagle3 import Eagle3Head
from treespec.training.head_shape import final_norm, layer_weights
from treespec.training.init_head import copy_fitting, copy_output_rows, embedding_of, pass_deepest

Head = TypeVar("Head", Eagle3Head, DFlashHead)


class HeadLearner(nn.Module, Generic[Head]):
    """Everything of a head's `Learner` but its drafts.

    Args:
        head: in float32.
        hidden_layers: the target's hidden states that it fuses.
        num_depths: of its drafts.
        is_head_frozen: its output rows are the target's, and are left out of its files.
    """

    def __init__(self, head: Head, hidden_layers: Sequence[int], num_depths: int, is_head_frozen: bool) -> None:
        super().__init__()
        self.head: Head = head
        self.num_depths = num_depths
        self._hidden_layers, self._is_head_frozen = tuple(hidden_layers), is_head_frozen
        head.lm_head.requires_grad_(not is_head_frozen)

    @property
    def target_ids(self) -> Tensor:
        """See `Learner`."""
        return self.head.target_ids

    @property
    def output_weight(self) -> Tensor:
        """See `Learner`."""
        return self.head.lm_head.weight

    @property
    def reads(self) -> dict[str, Any]:
        """See `Learner`."""
        return {"hidden_layers": list(self._hidden_layers)}

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the head in the speculators format."""
        head, has_head = self._whole_head(), not self._is_head_frozen
        save_head(head, self._hidden_layers, folder, name, has_lm_head=has_head, dtype=dtype)

    def _whole_head(self) -> Head:
        """The head as its files have it."""
        return self.head


def fresh_head(
    kind: Callable[[Config, Tensor, Tensor], Head],
    shape: Config,
    model: PreTrainedModel,
    target_ids: Tensor,
    is_initialised: bool,
) -> Head:
    """A head in float32 with the target's output rows int64 [W]; draws from torch's default generator.

    Initialised, it has the target's last layers and norm where they fit, and passes the deepest of the fused states.

    Raises:
        UnsupportedModelError: the target's embedding or output head is of another width than its hidden states, or its
            attention heads are of an odd size.
    """
    _check_fit(shape, model)
    head = kind(shape, embedding_of(model), target_ids).float()
    copy_output_rows(model, target_ids, head.lm_head)
    if is_initialised:
        _start_from(model, head)
    return head


def _check_fit(shape: HeadConfig, model: PreTrainedModel) -> None:
    kind, size = type(model).__name__, shape.layer.hidden_size
    widths = {"embedding": model.get_input_embeddings(), "output head": model.get_output_embeddings()}
    for name, module in widths.items():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.shape[1] != size:
            raise UnsupportedModelError(
                f"{kind}'s {name} is {weight.shape[1]} wide where its hidden states are {size}, and a head has one "
                "width for both"
            )
    if shape.layer.head_dim % 2:
        raise UnsupportedModelError(
            f"{kind} has attention heads of size {shape.layer.head_dim}, and a draft head's rotary positions need "
            "an even size"
        )


@torch.no_grad()
def _start_from(model: PreTrainedModel, head: Eagle3Head | DFlashHead) -> None:
    pass_deepest(head.fc)
    for layer, weights in zip(head.layers, layer_weights(model, len(head.layers)), strict=False):
        copy_fitting(layer, weights)
    norm = final_norm(model)
    if norm is not None and norm.shape == head.norm.weight.shape:
        head.norm.weight.copy_(norm)
