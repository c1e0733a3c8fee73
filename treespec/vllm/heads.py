"""Trained heads in vLLM, fitted to the model that it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.eagle3.drafter import Eagle3
from treespec.heads.eagle3.module import Eagle3Head
from treespec.heads.files.build import build_head
from treespec.heads.files.fitting import check_target, fused_layers, shipped_head
from treespec.heads.mtp.files import DRAFT_VOCAB, is_speculators_mtp
from treespec.vllm.files import Files
from treespec.vllm.options import OWN_LAYERS
from treespec.vllm.pages import OnPages


class ServedHead(OnPages, Eagle3):
    """`Eagle3` for rows that join and leave, on features that are fused already."""

    @property
    def _features(self) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self.head.fc.weight, self.head.fuse

    def _fuse(self, states: Float[Tensor, "B M H"]) -> Float[Tensor, "B M H"]:
        return states


def load_served_head(
    name: str, model: Any, config: Any, files: Files, gather: Callable[[Tensor, int], Tensor] = lambda part, dim: part
) -> OnPages:
    """The head of a name, see `find_folder`, for vLLM's model of this `ModelConfig`; without its pages.

    `gather` joins the parts that the ranks have of a weight along a dimension; all ranks call this.

    Raises:
        CheckpointError: nothing there, it cannot be read, or it is the head of another model.
        ConfigError: a head of another kind than EAGLE-3 and MTP, or a model that does not return hidden states.
        UnsupportedModelError: MTP layers that are not served.
    """
    own = replace(files, revision=files.revision or config.revision)
    is_own = name == OWN_LAYERS or Path(name).resolve() == Path(config.model).resolve()
    folder = own.find(config.model) if is_own else find_folder(name, files)
    if is_own or (folder / DRAFT_VOCAB).is_file() or is_speculators_mtp(folder):
        from treespec.vllm.mtp import load_served_mtp  # With transformers' models.

        return load_served_mtp(folder, config, *_vocabulary(model, gather))
    if not hasattr(model, "set_aux_hidden_state_layers"):
        raise ConfigError(f"vLLM's {type(model).__name__} does not return hidden states, which a head reads")
    embedding, lm_head = _vocabulary(model, gather)
    head = build_head(files.read(folder), embedding, lm_head, embedding.dtype, embedding.device)
    check_target(head.config, name, config.model, embedding.shape[1], [len(embedding)])
    if type(head) is not Eagle3Head:
        raise ConfigError(f"{name} is a {type(head).__name__}: EAGLE-3 heads and MTP layers are served in vLLM")
    served = ServedHead(head, fused_layers(head.config, name, len(_language(model).model.layers)))
    model.set_aux_hidden_state_layers(served.hidden_layers)
    return served


def find_folder(name: str, files: Files) -> Path:
    """A folder, or that of a head that ships with treespec, or of a repository of the hub, which vLLM's users name.

    Raises `CheckpointError`: there is none, or its files are here and have no `revision`.
    """
    is_here, is_repository = Path(name).is_dir(), "/" in name
    if files.revision is not None:
        if is_here or not is_repository:
            raise CheckpointError(f"{name} is not a repository of the hub: leave out revision={files.revision!r}")
        return files.find(name)
    try:
        return Path(name) if is_here else shipped_head(name)
    except CheckpointError as missing:
        if not is_repository:
            raise
        try:
            return files.find(name)
        except CheckpointError as error:
            raise CheckpointError(f"{missing}; {error}") from error


def _language(model: Any) -> Any:
    return model.get_language_model() if hasattr(model, "get_language_model") else model


def _vocabulary(model: Any, gather: Callable[[Tensor, int], Tensor]) -> list[Float[Tensor, "V H"]]:
    """The weights of the embedding and of the output layer."""
    language = _language(model)
    embedding = language.model.embed_tokens
    return [_weight(module, gather) for module in (embedding, getattr(language, "lm_head", embedding))]


def _weight(module: Any, gather: Callable[[Tensor, int], Tensor]) -> Float[Tensor, "V H"]:
    """Without the rows that vLLM pads the vocabulary with; of a LoRA layer the layer below it."""
    module = getattr(module, "base_layer", module)
    return gather(module.weight.detach(), 0)[: module.org_vocab_size]
