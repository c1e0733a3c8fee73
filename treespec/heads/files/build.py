"""Draft heads of every kind from their files."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import ID_DTYPES, Checkpoint, load_state
from treespec.heads.files.config import ConfigReader
from treespec.heads.files.kinds import kind_of_files
from treespec.heads.modules.base import DraftHead, HeadConfig

IGNORED = ("verifier_norm.", "verifier_lm_head.", "confidence_head.", "rotary_emb.")
"""Prefixes of tensors that are not read: the target's own weights, what is computed, and DSpark's confidence head."""

RENAMED = {
    "midlayer.": "layers.0.",
    "fusion_fc.": "fc.",
    "transformer.": "layers.0.",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
}
"""Beginnings of names in some files: SafeAILab's EAGLE-3, speculators' EAGLE, transformers' DFlash assistants."""
VECTORS = ("mask_hidden", "mask_embedding")
"""Vectors that libraries write with different numbers of axes."""

FROM_TARGET = "lm_head_from_target"
"""The configuration's key for files that leave out rows of the target's own `lm_head`."""


def build_head(
    checkpoint: Checkpoint,
    embedding: Tensor | None = None,
    lm_head: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> DraftHead[Any]:
    """The head of a checkpoint, of the kind that its configuration says, in this dtype and on this device.

    The target's weights [V, H] stand in for those that files leave out: its embedding, and its `lm_head` for heads of
    the whole vocabulary and for files with `lm_head_from_target` in their configuration.

    Raises `CheckpointError`: a configuration or a tensor that such a head does not have, or the target's weights are
    needed and do not fit.
    """
    path = checkpoint.path
    tensors = plain_names(checkpoint.tensors)
    config = ConfigReader(path / "config.json", checkpoint.config)
    kind = kind_of_files(config, tensors)
    shape = kind.read_config(config, tensors)
    offsets = tensors.pop("d2t", None)
    tensors.pop("t2d", None)
    ids = _target_ids(shape, offsets, checkpoint)
    embedding = _embedding(shape, tensors.pop("embed_tokens.weight", None), embedding, checkpoint)
    is_targets = shape.draft_vocab_size == shape.vocab_size
    if "lm_head.weight" not in tensors and (is_targets or config.get(FROM_TARGET) is True):
        tensors["lm_head.weight"] = _head_rows(shape, lm_head, ids, checkpoint)
    tensors = kind.keys.folded(tensors, config)
    tensors = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    embedding = embedding.to(device=device, dtype=dtype)
    with torch.device("meta"):
        head = kind.head(shape, embedding, ids)
    load_state(head, tensors, shape.layer, path)
    return head.to(device).eval()


def plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that are read, by the modules' names."""
    plain = {_plain_name(name): tensor for name, tensor in tensors.items()}
    plain |= {name: plain[name].reshape(-1) for name in VECTORS if name in plain}
    return {name: t for name, t in plain.items() if not name.startswith(IGNORED) and not name.endswith(".inv_freq")}


def _plain_name(name: str) -> str:
    name = name.removeprefix("model.")
    return next((new + name.removeprefix(old) for old, new in RENAMED.items() if name.startswith(old)), name)


def _target_ids(config: HeadConfig, offsets: Tensor | None, checkpoint: Checkpoint) -> Tensor:
    """int64 [W]: the target's id of every draft id."""
    path = checkpoint.path
    size = config.draft_vocab_size
    vocab_size = config.vocab_size
    if offsets is None:
        if size == vocab_size:
            return torch.arange(size, device="cpu")
        raise CheckpointError(f"{path} lacks d2t, which maps the {size} draft ids to {vocab_size} target ids")
    if list(offsets.shape) != [size] or offsets.dtype not in ID_DTYPES:
        raise CheckpointError(f"{path}: d2t must be int64 [{size}], got {offsets.dtype} {list(offsets.shape)}")
    ids = torch.arange(size, device="cpu") + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(ids.unique()) < size:
        raise CheckpointError(f"{path}: d2t must map the draft ids to {size} different ids in [0, {vocab_size})")
    return ids


def _embedding(config: HeadConfig, own: Tensor | None, targets: Tensor | None, checkpoint: Checkpoint) -> Tensor:
    """[V, H], the file's or else the target's."""
    path = checkpoint.path
    expected = [config.vocab_size, config.layer.hidden_size]
    if own is not None:
        if list(own.shape) != expected:
            raise CheckpointError(f"{path}: embed_tokens.weight expected {expected}, got {list(own.shape)}")
        return own
    if targets is None or targets.shape[1] != expected[1]:
        raise _of_another_model(path, "its embedding for", expected, targets)
    return targets


def _head_rows(config: HeadConfig, lm_head: Tensor | None, ids: Tensor, checkpoint: Checkpoint) -> Tensor:
    """The target's lm_head rows [W, H] of the draft vocabulary; the target's own tensor if those are all rows."""
    if lm_head is None or lm_head.shape[1] != config.layer.hidden_size or lm_head.shape[0] <= int(ids.max()):
        expected = [config.vocab_size, config.layer.hidden_size]
        raise _of_another_model(checkpoint.path, "its lm_head for rows of", expected, lm_head)
    if torch.equal(ids, torch.arange(lm_head.shape[0], device="cpu")):
        return lm_head.detach()
    return lm_head.detach()[ids.to(lm_head.device)]


def _of_another_model(path: Path, what: str, expected: list[int], found: Tensor | None) -> CheckpointError:
    got = None if found is None else list(found.shape)
    reason = f"leaves out {what} the target's, {expected}; got {got}"
    return CheckpointError(f"{path} {reason}: it is the head of another model")
