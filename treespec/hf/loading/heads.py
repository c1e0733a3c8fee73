"""Draft heads from files, fitted to the target that they were trained for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import ConfigError
from treespec.heads.assistant.drafter import Assistant
from treespec.heads.drafting.base import HeadDrafter
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint
from treespec.heads.files.fitting import check_target, fused_layers
from treespec.heads.files.kinds import kind_of_head
from treespec.heads.medusa.drafter import Medusa
from treespec.heads.modules.base import DraftHead
from treespec.hf.introspect import model_facts
from treespec.hf.loading.formats import FORMATS, find_folder, find_source, format_of
from treespec.hf.weights import whole_weight


def load_drafter(
    name: str | Path | PreTrainedModel,
    target: PreTrainedModel,
    *,
    max_length: int | None = None,
    hidden_layers: Sequence[int] | None = None,
) -> HeadDrafter[Any] | Assistant | Medusa:
    """The drafter of a trained head for `target`, of the kind in the head's configuration.

    EAGLE, EAGLE-3, P-EAGLE, DFlash, DFlash 2 and DSpark in their authors' or the speculators library's formats; MTP
    layers, Gemma 4's assistants and Medusa heads (`FORMATS`). The head takes the target's dtype and device, and its
    embedding and head where the files have none. Pickles are opened by `torch.load(weights_only=True)`, where there are
    no safetensors.

    Args:
        name: a folder with `config.json` and weights or of a trained MTP layer, a hub name, or "mtp" for the target's
            own layers, see `load_mtp`; of a Gemma 4 assistant also the loaded model.
        max_length: see `Eagle3`.
        hidden_layers: the indices of the target's hidden states that the head fuses; None: those of its configuration,
            or EAGLE-3's own (2, L // 2, L - 3).

    Raises:
        CheckpointError: nothing there, a corrupt or truncated file, no head of these kinds, or
            the head of another model.
        ConfigError: see `Eagle3`; hidden layers that the target does not have.
    """
    if method := format_of(name):
        if hidden_layers is not None:
            raise ConfigError(f"{method!r} drafts from the target's last hidden state: leave out {hidden_layers=}")
        return FORMATS[method].load(find_source(name), target, max_length)
    if isinstance(name, PreTrainedModel):
        raise ConfigError(f"{type(name).__name__} is not an assistant: a whole model drafts as TreeSpeculation(model)")
    head = load_head(name, target)
    layers = fused_layers(head.config, name, target.config.get_text_config().num_hidden_layers, hidden_layers)
    return kind_of_head(head).drafter(head, layers, max_length)


def load_head(name: str | Path, target: PreTrainedModel, dtype: torch.dtype | None = None) -> DraftHead[Any]:
    """The head's module, in the target's dtype unless `dtype` is given; the rest as in `load_drafter`."""
    folder, facts = find_folder(name), model_facts(target)
    checkpoint = read_checkpoint(folder)
    head = build_head(checkpoint, *vocabulary_weights(facts.model), dtype or facts.dtype, facts.device)
    own = facts.config
    check_target(head.config, name, facts.name, own.hidden_size, (own.vocab_size, facts.num_logits))
    return head


def vocabulary_weights(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """A model's embedding and the rows of its output head, each [V, H]; see `whole_weight`."""
    embedding = model.get_input_embeddings()
    return whole_weight(embedding), whole_weight(model.get_output_embeddings() or embedding)
