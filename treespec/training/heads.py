"""Training of all kinds of draft heads: their shape, their first weights or trained files, their learner."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, ConfigError, UnsupportedModelError
from treespec.heads.files.checkpoint import fuse_split
from treespec.heads.files.export import save_head
from treespec.heads.modules.base import Config, DraftHead, StateReader
from treespec.heads.modules.layers import LayerConfig
from treespec.heads.modules.rotary import rope_settings
from treespec.hf.introspect import num_logits
from treespec.hf.loading.heads import vocabulary_weights
from treespec.training.features import decoder_layers
from treespec.training.objective import Learner
from treespec.training.options import KINDS, TrainingConfig
from treespec.training.state import STATE
from treespec.training.text.texts import Texts

DEFAULT_THETA = 10000.0
SMALL = 0.1
"""The scale of random weights relative to copied ones."""

Head = TypeVar("Head", bound=DraftHead[Any])


class HeadLearner(Learner, Generic[Head]):
    """Everything of a `Learner` except its drafts, for a head in float32.

    Attributes:
        has_own_rows, has_own_embedding: the head's output rows and embedding are not the target's; its files hold them.
    """

    def __init__(self, head: Head, num_depths: int) -> None:
        super().__init__()
        self.head: Head = head
        self.num_depths = num_depths
        self.target_ids = head.target_ids
        self._hidden_layers = head.config.hidden_layers or ()
        self.reads = {"hidden_layers": list(self._hidden_layers)}
        self.has_own_rows = self.has_own_embedding = False
        head.lm_head.requires_grad_(False)  # The rows stay the target's, and are left out of the files.

    @property
    def output_weight(self) -> Tensor:
        return self.head.lm_head.weight

    def save(self, folder: Path, name: str | None, dtype: torch.dtype) -> None:
        """Write the head in the speculators format."""
        own = {"has_lm_head": self.has_own_rows, "has_embedding": self.has_own_embedding}
        save_head(self._complete_head(), self._hidden_layers, folder, name, **own, dtype=dtype)

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
        size = len(head.fc.weight)
        if head.fc.in_features % size == 0:
            head.fc.weight.mul_(SMALL)
            head.fc.weight[:, -size:] += torch.eye(size, dtype=torch.float32, device="cpu")
        for layer, weights in zip(head.layers, layer_weights(model, len(head.layers)), strict=False):
            _copy_fitting(layer, weights)
        norm = getattr(getattr(model.base_model, "norm", None), "weight", None)
        own = head.norm.get_parameter("weight")
        if isinstance(norm, Tensor) and norm.shape == own.shape:
            own.copy_(norm)
    return head


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


def head_sizes(model: PreTrainedModel, draft_vocab_size: int, hidden_layers: Sequence[int]) -> dict[str, Any]:
    """The arguments that the configurations of all heads have in common; layers in llama's form, of the target's size.

    Raises `UnsupportedModelError`: the target's embedding or output head is of another width than its hidden states, or
    its attention heads are of an odd size.
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


def read_layers(model: PreTrainedModel, config: TrainingConfig) -> tuple[int, ...]:
    """The target's hidden states that a head reads. Raises `ConfigError`: `config.hidden_layers` are others."""
    count = model.config.get_text_config().num_hidden_layers
    layers = config.hidden_layers or usual_layers(count)
    if not set(layers) <= set(range(count)) or len(set(layers)) < len(layers):
        raise ConfigError(f"hidden_layers must be different numbers from 0 to {count - 1}, got {list(layers)}")
    return layers


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """The hidden states that a head fuses: EAGLE-3's (2, L // 2, L - 3), or what a shallow model has; each once."""
    first, last = (2, num_layers - 3) if num_layers >= 6 else (0, num_layers - 1)
    return tuple(sorted({first, num_layers // 2, last}))


def draft_ids(model: PreTrainedModel, texts: Texts, config: TrainingConfig, head: StateReader | None = None) -> Tensor:
    """The target's ids int64 [W] to be drafted: those of a trained `head` if it has as many as `config` wants."""
    if head is not None and len(head.target_ids) == config.draft_vocab_size:
        return head.target_ids.cpu()
    return choose_vocabulary(texts.tokens, texts.top, num_logits(model), config.draft_vocab_size)


def choose_vocabulary(tokens: Tensor, top: Tensor, vocab_size: int, size: int) -> Tensor:
    """The `size` most frequent tokens, ascending int64, or all (FR-Spec, Zhao et al. 2025); arguments as in `Texts`.

    Ties go to those that are more often among the probable next tokens.
    """
    if size >= vocab_size:
        return torch.arange(vocab_size, device="cpu")
    counts = tokens.bincount(minlength=vocab_size)
    probable = top[top >= 0].long().bincount(minlength=vocab_size)
    # Two stable sorts, the second criterion first.
    order = probable.argsort(descending=True, stable=True)
    order = order[counts[order].argsort(descending=True, stable=True)]
    return order[:size].sort().values


def _check_fit(model: PreTrainedModel, layer: LayerConfig) -> None:
    kind = type(model).__name__
    size = layer.hidden_size
    for name, weight in zip(("embedding", "output head"), vocabulary_weights(model), strict=True):
        if weight.shape[1] != size:
            raise UnsupportedModelError(
                f"{kind}'s {name} is {weight.shape[1]} wide where its hidden states are {size}: a draft head needs one "
                "width for both"
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
        settings = {"rope_type": "default"}
    return settings | {"rope_theta": settings.get("rope_theta") or DEFAULT_THETA}


def files_of(config: TrainingConfig) -> str | None:
    """`config.start` if it holds a trained drafter, and not another run."""
    start, kind = config.start, KINDS[config.kind]
    if start is None or kind.files is None or (Path(start) / STATE).exists():
        return None
    return start if start == kind.own or any(Path(start).glob(kind.files)) else None
