"""EAGLE-3 heads in training (Li et al. 2025, section 3.1): unrolled on their own features."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import CheckpointError
from treespec.heads.eagle3.files import eagle3_config
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head, unroll
from treespec.heads.files.build import plain_names
from treespec.heads.files.checkpoint import read_checkpoint, split_fused
from treespec.heads.files.config import ConfigReader
from treespec.training.data import Batch
from treespec.training.heads import HeadLearner, fresh_head, head_sizes, layer_weights
from treespec.training.objective import Draft
from treespec.training.options import TrainingConfig

FROM_TARGET = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")
"""Weights that `load_files` leaves unchanged, whatever the files hold."""


class Eagle3Learner(HeadLearner[Eagle3Head]):
    """An EAGLE-3 head for `Objective`; `num_depths` steps are unrolled."""

    def drafts(self, batch: Batch, generator: torch.Generator | None) -> list[Draft]:
        """See `Learner`. The feature of a text's first token is used by the draft anchored at the second one."""
        features = self.head.fuse(batch.states[:, :-1].to(self.head.fc.weight.dtype))
        num_depths = min(self.num_depths, features.shape[1])
        drafts = []
        for depth, outputs in enumerate(unroll(self.head, batch.tokens[:, 1:], features, num_depths)):
            texts, starts = batch.is_generated[:, 1 + depth :].nonzero(as_tuple=True)
            drafts.append(Draft(outputs[texts, starts], texts, starts + 1))
        return drafts

    @torch.no_grad()
    def load_files(self, folder: Path) -> None:
        """Load a head's trained weights or raise `CheckpointError`; draft vocabulary and rows stay this head's."""
        found = read_checkpoint(folder)
        tensors = plain_names(found.tensors)
        layers = eagle3_config(ConfigReader(folder / "config.json", found.config), tensors).hidden_layers
        if layers is not None and layers != self._hidden_layers:
            own = list(self._hidden_layers)
            raise CheckpointError(f"{folder} is of a drafter that reads {list(layers)}, where this one reads {own}")
        trained = {name: weight for name, weight in self.head.named_parameters() if weight.requires_grad}
        weights = split_fused(trained, self.head.config.layer)  # Views, so that copying to them changes the head.
        given = {name: tensor for name, tensor in tensors.items() if name not in FROM_TARGET}
        shapes, found_shapes = ({name: t.shape for name, t in own.items()} for own in (weights, given))
        if other := sorted({name for name, _ in shapes.items() ^ found_shapes.items()}):
            raise CheckpointError(f"{folder} is of a drafter of other sizes: {', '.join(other)}")
        for name, weight in weights.items():
            weight.copy_(given[name])


def files_vocabulary(folder: Path, size: int) -> Tensor | None:
    """The draft vocabulary of a trained head's files, int64 [size]; None for no head's files or another size.

    Raises `CheckpointError`: damaged files.
    """
    if not (folder / "config.json").exists():
        return None
    offsets = plain_names(read_checkpoint(folder).tensors).get("d2t")
    return None if offsets is None or offsets.shape != (size,) else offsets + torch.arange(size, device="cpu")


def make_eagle3(
    model: PreTrainedModel, target_ids: Tensor, hidden_layers: Sequence[int], config: TrainingConfig
) -> Eagle3Learner:
    """A fresh head with the draft vocabulary `target_ids` int64 [W]; for random weights and errors see `fresh_head`."""
    shape = Eagle3Config(**head_sizes(model, len(target_ids), hidden_layers), num_layers=config.layers)
    head = fresh_head(Eagle3Head, shape, model, target_ids, config.is_initialised)
    if config.is_initialised and (weights := layer_weights(model, config.layers)):
        _copy_first_layer(head.layers[0], weights[0])
    return Eagle3Learner(head, config.depths)


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
