"""Draft heads from files, fitted to the target that they were trained for."""

from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import PreTrainedModel

import treespec.data
from treespec.drafters.heads.dflash import DFlash
from treespec.drafters.heads.eagle3 import Eagle3
from treespec.errors import CheckpointError, ConfigError
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import Checkpoint, read_checkpoint
from treespec.heads.modules.dflash import DFlashConfig, DFlashHead
from treespec.heads.modules.eagle3 import Eagle3Config, Eagle3Head
from treespec.hf.devices.weights import whole_weight
from treespec.hf.introspect import model_facts
from treespec.hf.loading.hub import hub_problem

DATA = Path(treespec.data.__file__).parent
HEAD_SUFFIX = "-head"
"""The heads that come with treespec lie in folders named after their targets, with this suffix."""


def load_drafter(
    name: str | Path,
    target: PreTrainedModel,
    *,
    max_length: int | None = None,
    hidden_layers: Sequence[int] | None = None,
) -> Eagle3 | DFlash:
    """The drafter of a trained head for `target`, of the kind in the head's configuration.

    EAGLE-3 in SafeAILab's or the speculators library's format, DFlash and DSpark in their authors' or the speculators
    library's. The head takes the target's dtype and device, and its embedding and head where the files have none.
    Pickles are not opened.

    Args:
        name: a folder with `config.json` and `*.safetensors`, or a hub name.
        max_length: see `Eagle3`.
        hidden_layers: the indices of the target's hidden states that the head fuses; None: those of its configuration,
            or EAGLE-3's own (2, L // 2, L - 3).

    Raises:
        CheckpointError: nothing there, a corrupt or truncated file, pickled weights only, no head of these kinds, or
            the head of another model.
        ConfigError: see `Eagle3`; hidden layers that the target does not have.
    """
    head = load_head(name, target)
    layers = fused_layers(head.config, target, name, hidden_layers)
    if isinstance(head, DFlashHead):
        return DFlash(head, layers, max_length)
    return Eagle3(head, layers, max_length)


def load_head(name: str | Path, target: PreTrainedModel, dtype: torch.dtype | None = None) -> Eagle3Head | DFlashHead:
    """The head's module, in the target's dtype unless `dtype` is given; the rest as in `load_drafter`."""
    facts = model_facts(target)
    head = build_head(find_checkpoint(name), *vocabulary_weights(facts.model), dtype or facts.dtype, facts.device)
    own = facts.config
    config = head.config
    for what, size, allowed in (
        ("hidden states of size", config.target_hidden_size, (own.hidden_size,)),
        ("a vocabulary of size", config.vocab_size, (own.vocab_size, facts.num_logits)),
    ):
        if size not in allowed:
            found = f"{name} is for {what} {size}, {facts.name} has {allowed[0]}"
            raise CheckpointError(f"{found}: it is the head of another model")
    return head


def vocabulary_weights(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """A model's embedding and the rows of its output head, each [V, H]; see `whole_weight`."""
    embedding = model.get_input_embeddings()
    return whole_weight(embedding), whole_weight(model.get_output_embeddings() or embedding)


def shipped_head(name: str) -> Path:
    """The folder of a head that comes with treespec, by its target's name without the owner; else `CheckpointError`.

    drafter = load_drafter(shipped_head("SmolLM2-135M-Instruct"), model)
    """
    heads = {path.name.removesuffix(HEAD_SUFFIX): path for path in DATA.glob(f"*{HEAD_SUFFIX}")}
    found = heads.get(name.rsplit("/", 1)[-1].lower())
    if found is None:
        raise CheckpointError(
            f"no head for {name!r} comes with treespec (there are {', '.join(sorted(heads)) or 'none'}): train one "
            f"with treespec train {name} --texts FOLDER --out FOLDER"
        )
    return found


def find_checkpoint(name: str | Path) -> Checkpoint:
    """The files of a folder, or of a hub repository (its safetensors and configuration only)."""
    if Path(name).exists():
        return read_checkpoint(name)
    if problem := hub_problem(str(name)):
        raise CheckpointError(f"cannot load a draft head from {str(name)!r}: {problem}")
    try:
        folder = snapshot_download(str(name), allow_patterns=["config.json", "*.safetensors"])
    except (OSError, ValueError) as error:
        reason = f"it cannot be fetched from the hub ({' '.join(str(error).split())})"
        raise CheckpointError(f"there is no folder {name}, and {reason}") from error
    return read_checkpoint(folder)


def fused_layers(
    config: Eagle3Config | DFlashConfig, target: PreTrainedModel, name: str | Path, given: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The indices of `HiddenStates` that the head fuses; files never mean the last one, which is normed.

    `given` is `hidden_layers` of `load_drafter`, whose other arguments and errors are the same.
    """
    count = target.config.get_text_config().num_hidden_layers
    if given is None and config.hidden_layers is None and config.num_features == 3:
        layers = (2, count // 2, count - 3)
    else:
        layers = tuple(given if given is not None else config.hidden_layers or ())
    limit = count if given is None else count + 1
    if len(layers) != config.num_features or not all(-limit <= layer < limit for layer in layers):
        error = CheckpointError if given is None else ConfigError
        raise error(
            f"{name} fuses {config.num_features} hidden states of the target, got the indices {list(layers)} for a "
            f"model of {count} layers: give hidden_layers=, or the head of this model"
        )
    if given is None and min(layers) < 0:
        raise CheckpointError(f"{name} fuses the hidden states {list(layers)} of a model of {count} layers")
    return layers
