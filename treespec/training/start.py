"""The trained drafters whose files a run can begin with."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, UnsupportedModelError
from treespec.heads.eagle3.module import Eagle3Head
from treespec.heads.mtp.module import MtpHead
from treespec.heads.peagle.module import PEagleHead
from treespec.hf.loading.heads import load_head
from treespec.hf.loading.mtp import MTP, load_mtp
from treespec.training.options import TrainingConfig
from treespec.training.state import STATE


def has_trained_files(config: TrainingConfig) -> bool:
    """Whether `config.start` holds a trained drafter, and not another run."""
    if config.start is None or config.kind not in ("eagle3", "mtp") or (Path(config.start) / STATE).exists():
        return False
    if config.kind == "mtp":
        return config.start == MTP or any(Path(config.start).glob("*.safetensors"))
    return (Path(config.start) / "config.json").exists()


def trained_head(model: PreTrainedModel, config: TrainingConfig) -> Eagle3Head | MtpHead | None:
    """The head in `config.start`, EAGLE-3 in float32, MTP in the target's dtype; None if there are no such files.

    Raises:
        CheckpointError: damaged files, another kind of head, or one of another model.
        UnsupportedModelError: MTP layers that are not trained.
    """
    if config.start is None or not has_trained_files(config):
        return None
    if config.kind == "mtp":
        head = load_mtp(model, None if config.start == MTP else config.start).head
        _check_mtp(head, config.start)
        return head
    head = load_head(config.start, model, torch.float32)
    if not isinstance(head, Eagle3Head) or isinstance(head, PEagleHead):
        raise CheckpointError(f"{config.start} holds a head of the kind {head.config.algorithm}, not EAGLE-3")
    return head


def _check_mtp(head: MtpHead, name: str) -> None:
    """Raise `UnsupportedModelError` for layers that cannot be written in Qwen's layout."""
    names = [name for name, _ in head.named_parameters()]
    for problem, is_there in (
        (f"{head.config.num_layers} layers", head.config.num_layers > 1),
        ("experts", any(".experts." in name for name in names)),
        ("several decoder layers", any("blocks.1." in name for name in names)),
        ("no last norm", "layers.0.norm.weight" not in names),
    ):
        if is_there:
            raise UnsupportedModelError(f"the MTP layers of {name} are not trained further: they have {problem}")
