"""Multi-token-prediction layers from the target's own files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.heads.mtp.drafter import Mtp
from treespec.heads.mtp.files import DRAFT_VOCAB, QWEN, MtpTensors, is_speculators_mtp, read_draft_vocab, read_mtp
from treespec.heads.mtp.module import MtpHead, NormScales
from treespec.hf.introspect import ModelFacts, model_facts
from treespec.hf.loading.formats import MTP, Format
from treespec.hf.loading.mtp_layers import build_mtp, last_norm

COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Configuration keys for the number of MTP layers."""


def load_mtp(
    target: PreTrainedModel,
    checkpoint: str | Path | None = None,
    *,
    draft_vocab: int | Sequence[int] | None = None,
    max_length: int | None = None,
    is_target_normed: bool = True,
    is_own_normed: bool = True,
) -> Mtp:
    """The drafter of the multi-token-prediction layers in the target's own checkpoint, which transformers leaves out.

    The layers read the target's last hidden state, after its last norm, and share its embedding and output layer. Their
    layout is known by the names of the tensors; the decoder layer in them is of the target's own class.

    Args:
        checkpoint: the folder of the files, if they are not where the target was loaded from.
        draft_vocab: the tokens that may be drafted: their ids, or the number of the first ones; None: those that the
            layers were trained for, by `treespec train`, else all. A large vocabulary makes the output layer the
            longest part of a draft pass.
        max_length: see `Eagle3`.
        is_target_normed: the layers read the target's state after its last norm; False: before it, for a checkpoint
            that was trained so.
        is_own_normed: the same of their own output, which they read deeper in a draft.

    Raises:
        CheckpointError: there are no files, no MTP layers in them, or layers of another model or an unknown layout.
        UnsupportedModelError: MTP layers of a kind that is not served.
        ConfigError: ids that are not the target's.
    """
    facts = model_facts(target)
    folder = _folder(facts, checkpoint)
    found = read_mtp(folder, facts.config.num_hidden_layers, facts.dtype)
    if found is None:
        raise CheckpointError(_nothing_found(facts, folder))
    if draft_vocab is None:
        draft_vocab = read_draft_vocab(folder, facts.num_logits)
    head = build_mtp(facts, folder, *found, draft_vocab)
    head.scales = _norm_scales(facts, head, is_target_normed, is_own_normed)
    return Mtp(head, (facts.config.num_hidden_layers,), max_length)


def own_draft_vocab(target: PreTrainedModel) -> list[int] | None:
    """The ids that a checkpoint's MTP layers were trained to draft; None: all. Raises `CheckpointError`: no files."""
    facts = model_facts(target)
    return read_draft_vocab(_folder(facts, None), facts.num_logits)


def fresh_mtp(target: PreTrainedModel, block: dict[str, Tensor], projection: Tensor) -> MtpHead:
    """An MTP layer of the Qwen layout around a decoder layer of these weights, with the target's last norm.

    Raises:
        CheckpointError: they do not belong to such a decoder layer.
        UnsupportedModelError: norms with a bias, which the layout has not.
    """
    facts = model_facts(target)
    last = last_norm(facts.model.get_decoder())
    if [name for name, _ in last.named_parameters()] != ["weight"]:
        raise UnsupportedModelError(f"MTP layers have norms with a weight alone, {facts.name} has others")
    neutral = type(last)(facts.config.hidden_size).get_parameter("weight").detach()
    weight = last.get_parameter("weight").detach().cpu()
    tensors = MtpTensors(neutral, neutral, projection, weight, (block,))
    return build_mtp(facts, Path(facts.name), QWEN, [tensors], None)


def num_mtp_layers(model: PreTrainedModel) -> int:
    """How many MTP layers a model's configuration names; its files may lack them."""
    config = model.config.get_text_config()
    return next((count for key in COUNTS if (count := getattr(config, key, None))), 0)


def _folder(facts: ModelFacts, checkpoint: str | Path | None) -> Path:
    """Where the files are; nothing is downloaded."""
    name = str(checkpoint if checkpoint is not None else facts.model.config.name_or_path)
    if name and Path(name).is_dir():
        return Path(name)
    revision = getattr(facts.model.config, "_commit_hash", None) if checkpoint is None else None
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=["*.safetensors"], local_files_only=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"MTP layers are read from the target's files, and {name!r} is neither a folder nor in the hub's cache: "
            "give load_mtp(model, folder)"
        ) from error


def _nothing_found(facts: ModelFacts, folder: Path) -> str:
    count = num_mtp_layers(facts.model)
    if not count:
        return f"{folder} holds no MTP layers, and the configuration of {facts.name} names none"
    return (
        f"the configuration of {facts.name} names {count} MTP layers, but the files in {folder} hold none of their "
        "weights: what wrote them (save_pretrained, quantising or converting) dropped them; give "
        "load_mtp(model, folder) the publisher's files"
    )


def _norm_scales(facts: ModelFacts, head: MtpHead, is_target_normed: bool, is_own_normed: bool) -> NormScales:
    """The scales that are to be undone. Raises `UnsupportedModelError`: norms that do not only scale."""
    norms = [last_norm(facts.model.get_decoder())] * (not is_target_normed)
    if not is_own_normed:
        norms += [layer.get_submodule("norm") for layer in head.layers]
    ones = torch.ones(facts.config.hidden_size, dtype=facts.dtype, device=facts.device)
    with torch.no_grad():
        found = [norm(ones[None])[0] for norm in norms]  # A root mean square norm of ones is its scale.
    if not all(scale.all() and scale.isfinite().all() for scale in found):
        raise UnsupportedModelError(f"{facts.name} has a last norm whose input cannot be had from its output")
    return NormScales(None if is_target_normed else found.pop(0), None if is_own_normed else found)


def _is_mtp(source: Any) -> bool:
    """Whether this is the name of the target's own layers, or a folder of layers that were trained for one."""
    is_folder = isinstance(source, Path)
    return source == MTP or (is_folder and ((source / DRAFT_VOCAB).is_file() or is_speculators_mtp(source)))


def _load(source: str | Path, target: PreTrainedModel, max_length: int | None) -> Mtp:
    return load_mtp(target, None if source == MTP else source, max_length=max_length)


FORMAT = Format(_is_mtp, _load)
