"""EAGLE-3 heads in training (Li et al. 2025, section 3.1): unrolled on their own features."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import CheckpointError
from treespec.heads.eagle3.drafter import Eagle3
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head, unroll
from treespec.heads.peagle.module import PEagleHead
from treespec.hf.loading.heads import load_head
from treespec.training.data import Batch
from treespec.training.heads import HeadLearner, draft_ids, files_of, fresh_head, head_sizes, layer_weights, read_layers
from treespec.training.objective import Draft, unrolled
from treespec.training.options import TrainingConfig, TrainingKind
from treespec.training.text.texts import Texts


class Eagle3Learner(HeadLearner[Eagle3Head]):
    """An EAGLE-3 head for `Objective`; `num_depths` steps are unrolled."""

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`. The feature of a text's first token is used by the draft anchored at the second one."""
        features = self.head.fuse(batch.states[:, :-1].to(self.head.fc.weight.dtype))
        num_depths = min(self.num_depths, features.shape[1])
        return unrolled(batch, unroll(self.head, batch.tokens[:, 1:], features, num_depths))


def make_eagle3(
    model: PreTrainedModel,
    target_ids: Tensor,
    hidden_layers: Sequence[int],
    config: TrainingConfig,
    trained: Eagle3Head | None = None,
) -> Eagle3Learner:
    """A fresh head with the draft vocabulary `target_ids` int64 [W], or one that begins as the `trained` one.

    For random weights and errors see `fresh_head`. Raises `CheckpointError`: `trained` reads other hidden states, or
    has other layers.
    """
    if trained is not None:
        return _begin_with(trained, model, target_ids, tuple(hidden_layers), config)
    shape = Eagle3Config(**head_sizes(model, len(target_ids), hidden_layers), num_layers=config.layers)
    head = fresh_head(Eagle3Head, shape, model, target_ids, config.is_initialised)
    if config.is_initialised and (weights := layer_weights(model, config.layers)):
        _copy_first_layer(head.layers[0], weights[0])
    return Eagle3Learner(head, config.depths)


@torch.no_grad()
def _begin_with(
    trained: Eagle3Head,
    model: PreTrainedModel,
    target_ids: Tensor,
    hidden_layers: tuple[int, ...],
    config: TrainingConfig,
) -> Eagle3Learner:
    """A learner with the weights of a trained head, whose output rows stay if the draft vocabulary does."""
    layers = trained.config.hidden_layers
    if layers is not None and layers != hidden_layers:
        found = f"{config.start} is of a drafter that reads {list(layers)}"
        raise CheckpointError(f"{found}, where this one reads {list(hidden_layers)}")
    sizes = {"draft_vocab_size": len(target_ids), "hidden_layers": hidden_layers, "num_layers": config.layers}
    head = fresh_head(Eagle3Head, replace(trained.config, **sizes), model, target_ids, is_initialised=False)
    learner = Eagle3Learner(head, config.depths)
    own, given = ({name: w for name, w in h.named_parameters() if "lm_head" not in name} for h in (head, trained))
    shapes, found_shapes = ({name: w.shape for name, w in weights.items()} for weights in (own, given))
    if other := sorted({name for name, _ in shapes.items() ^ found_shapes.items()}):
        raise CheckpointError(f"{config.start} is of a drafter of other sizes: {', '.join(other)}")
    for name, weight in own.items():
        weight.copy_(given[name])
    if learner.target_ids.equal(trained.target_ids.to(learner.target_ids.device)):
        rows = trained.lm_head.weight.to(head.lm_head.weight.device)  # A head is built on the CPU.
        learner.has_own_rows = not head.lm_head.weight.equal(rows)
        head.lm_head.weight.copy_(rows)
    learner.has_own_embedding = not head.embedding.equal(trained.embedding)
    head.embedding = trained.embedding
    return learner


@torch.no_grad()
def _copy_first_layer(layer: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy q, k, v and the input norm of a target's layer to where the head's first layer reads the feature.

    The weights for the embedding, which the target's layer does not read, stay random and are scaled down.
    """
    names = [f"self_attn.{name}_proj.weight" for name in "qkv"]
    wide = layer.get_parameter("self_attn.qkv_proj.weight")
    norm = weights.get("input_layernorm.weight")
    if all(name in weights for name in names):
        narrow = torch.cat([weights[name] for name in names])
        if wide.shape == (len(narrow), 2 * narrow.shape[1]):
            wide[:, narrow.shape[1] :] = narrow
            wide[:, : narrow.shape[1]] *= 0.5
    if norm is not None and norm.shape == layer.get_parameter("hidden_norm.weight").shape:
        layer.get_parameter("hidden_norm.weight").copy_(norm)
        layer.get_parameter("input_layernorm.weight").fill_(1)


def _make(model: PreTrainedModel, texts: Texts, config: TrainingConfig) -> Eagle3Learner:
    trained = None
    if (files := files_of(config)) is not None:
        trained = load_head(files, model, torch.float32)
        if not isinstance(trained, Eagle3Head) or isinstance(trained, PEagleHead):
            raise CheckpointError(f"{files} holds a head of the kind {trained.config.algorithm}, not EAGLE-3")
    target_ids = draft_ids(model, texts, config, trained)
    return make_eagle3(model, target_ids, read_layers(model, config), config, trained)


KIND = TrainingKind("EAGLE-3 head", _make, num_depths=4, num_layers=1, files="config.json", drafter=Eagle3)
