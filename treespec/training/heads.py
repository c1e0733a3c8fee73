"""What all draft heads have in common in training: their shape, their first weights, their learner.

Axis letters: H the head's hidden size, L fused hidden states, V the target's vocabulary, W the draft vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.heads.files.checkpoint import fuse_split
from treespec.heads.files.export import save_head
from treespec.heads.modules.base import Config
from treespec.heads.modules.dflash import DFlashHead
from treespec.heads.modules.eagle3 import Eagle3Head
from treespec.heads.modules.layers import LayerConfig
from treespec.heads.modules.rotary import rope_settings
from treespec.hf.introspect import num_logits
from treespec.hf.models.layers import decoder_layers

DEFAULT_THETA = 10000.0
SMALL = 0.1
"""The scale of random weights beside copied ones."""

Head = TypeVar("Head", Eagle3Head, DFlashHead)


class HeadLearner(nn.Module, Generic[Head]):
    """Everything of a `Learner` except its drafts, for a head in float32."""

    def __init__(self, head: Head, num_depths: int) -> None:
        super().__init__()
        self.head: Head = head
        self.num_depths = num_depths
        self._hidden_layers = head.config.hidden_layers or ()
        self.reads: dict[str, Any] = {"hidden_layers": list(self._hidden_layers)}
        head.lm_head.requires_grad_(False)  # The rows stay the target's, and are left out of the files.

    @property
    def target_ids(self) -> Tensor:
        """See `Learner`."""
        return self.head.target_ids

    @property
    def output_weight(self) -> Tensor:
        """See `Learner`."""
        return self.head.lm_head.weight

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the head in the speculators format."""
        save_head(self._complete_head(), self._hidden_layers, folder, name, has_lm_head=False, dtype=dtype)

    def _complete_head(self) -> Head:
        """The head with all modules that its files hold."""
        return self.head


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
    embedding, rows = vocabulary_weights(model)
    head = kind(config, embedding.detach().float(), target_ids).float()
    head.lm_head.weight.copy_(rows[target_ids.to(rows.device)])
    if is_initialised:
        _pass_deepest(head.fc)
        for layer, weights in zip(head.layers, layer_weights(model, len(head.layers)), strict=False):
            _copy_fitting(layer, weights)
        norm = getattr(getattr(model.base_model, "norm", None), "weight", None)
        if isinstance(norm, Tensor) and norm.shape == head.norm.weight.shape:
            head.norm.weight.copy_(norm)
    return head


def vocabulary_weights(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """A target's embedding and the rows of its output head, each [V, H]."""
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    rows = embedding if output is None else output.weight
    assert isinstance(embedding, Tensor)
    assert isinstance(rows, Tensor)
    return embedding, rows


def layer_weights(model: PreTrainedModel, num_layers: int) -> list[dict[str, Tensor]]:
    """The weights of the target's last `num_layers` layers, in order; empty for a model without a list of layers."""
    try:
        layers = decoder_layers(model)
    except UnsupportedModelError:
        return []
    return [dict(layer.state_dict()) for layer in list(layers)[-num_layers:]]


def _copy_fitting(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights, in the files' names, that the module has in the same shape."""
    try:
        given = fuse_split(weights)
    except KeyError:  # The target keeps its projections in one matrix.
        return
    for name, tensor in module.state_dict().items():
        if name in given and given[name].shape == tensor.shape:
            tensor.copy_(given[name])


def _pass_deepest(fc: nn.Linear) -> None:
    """Let `fc` [H, L H] pass the last, deepest, of the fused states, and little of the others."""
    size = fc.weight.shape[0]
    if fc.weight.shape[1] % size == 0:
        fc.weight.mul_(SMALL)
        fc.weight[:, -size:] += torch.eye(size)


def head_sizes(model: PreTrainedModel, draft_vocab_size: int, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The arguments that the configurations of all heads have in common.

    Layers are as wide as the target's, in llama's form whatever the target's form.

    Raises:
        UnsupportedModelError: the target's embedding or output head is of another width than its hidden states, or its
            attention heads are of an odd size.
    """
    text = model.config.get_text_config()
    intermediate_size = getattr(text, "intermediate_size", None)
    layer = LayerConfig(
        hidden_size=text.hidden_size,
        intermediate_size=intermediate_size if isinstance(intermediate_size, int) else 4 * text.hidden_size,
        num_heads=text.num_attention_heads,
        num_key_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        norm_eps=getattr(text, "rms_norm_eps", None) or 1e-6,
        rope=_rope(text),
        max_positions=getattr(text, "max_position_embeddings", None) or 2048,
    )
    _check_fit(model, layer)
    return {
        "layer": layer,
        "vocab_size": num_logits(model),
        "draft_vocab_size": draft_vocab_size,
        "target_hidden_size": layer.hidden_size,
        "num_features": len(hidden_layers),
        "hidden_layers": tuple(hidden_layers),
    }


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden states that a head fuses: EAGLE-3's (2, L // 2, L - 3), or what a shallow model has; each once."""
    first, last = (2, num_layers - 3) if num_layers >= 6 else (0, num_layers - 1)
    return tuple(sorted({first, num_layers // 2, last}))


def _check_fit(model: PreTrainedModel, layer: LayerConfig) -> None:
    kind = type(model).__name__
    for name, weight in zip(("embedding", "output head"), vocabulary_weights(model), strict=True):
        if weight.shape[1] != layer.hidden_size:
            raise UnsupportedModelError(
                f"{kind}'s {name} is {weight.shape[1]} wide where its hidden states are {layer.hidden_size}: a draft "
                "head needs one width for both"
            )
    if layer.head_dim % 2:
        raise UnsupportedModelError(
            f"{kind} has attention heads of size {layer.head_dim}: a head's rotary positions need an even size"
        )


def _rope(text: Any) -> dict[str, Any]:
    """The target's own rotary settings, or the default ones where a head cannot have them."""
    try:
        settings = rope_settings(text.to_dict())
    except CheckpointError:
        return {"rope_type": "default", "rope_theta": DEFAULT_THETA}
    return settings if settings.get("rope_theta") else settings | {"rope_theta": DEFAULT_THETA}
