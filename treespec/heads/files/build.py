"""Draft heads of any kind from their files."""

from __future__ import annotations

import torch
from torch import Tensor

from treespec.errors import CheckpointError
from treespec.heads.files.checkpoint import Checkpoint, load_state
from treespec.heads.files.dflash import block_config, is_block_config
from treespec.heads.files.eagle3 import eagle3_config, is_eagle3, without_midlayer
from treespec.heads.files.parts import FROM_TARGET, head_rows, own_or_targets, plain_names, target_ids
from treespec.heads.modules.dflash import DFlashConfig, DFlashHead
from treespec.heads.modules.eagle3 import Eagle3Head


def build_head(
    checkpoint: Checkpoint,
    embedding: Tensor | None = None,
    lm_head: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Eagle3Head | DFlashHead:
    """The head that a checkpoint holds; its configuration says of which kind.

    Args:
        embedding: the target's [V, J], for files without one.
        lm_head: the target's [V, J], for files that leave out the draft vocabulary's rows of it: those that say so by
            `lm_head_from_target` in their configuration, and block-parallel heads of the whole vocabulary.
        dtype, device: of the module.

    Raises:
        CheckpointError: the configuration or a tensor is not that of such a head, or the target's weights are needed
            and do not fit.
    """
    path, tensors = checkpoint.path, plain_names(checkpoint.tensors)
    if is_block_config(checkpoint.config):
        config = block_config(checkpoint.config, tensors, path)
    else:
        if "speculators_model_type" not in checkpoint.config and not is_eagle3(tensors):
            raise CheckpointError(
                f"{path} holds no draft head of the kinds that are read (EAGLE-3, DFlash, DSpark): a whole model "
                "drafts as TreeSpeculation(model)"
            )
        tensors = without_midlayer(tensors)
        config = eagle3_config(checkpoint.config, tensors, path)
    mappings = {name: tensors.pop(name, None) for name in ("d2t", "t2d")}
    ids = target_ids(config, mappings["d2t"], mappings["t2d"], path)
    embedding = own_or_targets(config, tensors.pop("embed_tokens.weight", None), embedding, path)
    embedding = embedding.to(device=device, dtype=dtype)
    is_whole_block = isinstance(config, DFlashConfig) and config.draft_vocab_size == config.vocab_size
    if "lm_head.weight" not in tensors and (is_whole_block or checkpoint.config.get(FROM_TARGET) is True):
        tensors["lm_head.weight"] = head_rows(config, lm_head, ids, path)
    tensors = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    with torch.device("meta"):
        if isinstance(config, DFlashConfig):
            head = DFlashHead(config, embedding, ids)
        else:
            head = Eagle3Head(config, embedding, ids)
    load_state(head, tensors, config.layer, path)
    return head.to(device).eval()
