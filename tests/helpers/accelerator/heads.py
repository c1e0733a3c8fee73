"""Trained heads on the pretended accelerator: tiny random heads, and the cases that draft with them."""

from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

import torch
from helpers import dflash_files, eagle3_files
from helpers.accelerator.device import DEVICE, to_device
from helpers.head_files import SPECULATORS
from helpers.medusa_files import random_heads

from treespec import Chain, KAry, TreeSpeculation
from treespec.heads import DFlash, Eagle3, Medusa
from treespec.heads.files.build import build_head
from treespec.heads.files.checkpoint import read_checkpoint


def head_cases(settings: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Callable[[Any], TreeSpeculation], Any]]:
    """As `waits.cases`; `settings` are further arguments of `generate` by name."""
    shapes = {"tree of 8": 8, "2 x 2": KAry((2, 2)), "chain of 4": Chain(4)}
    for setting, extra in settings.items():
        for name, make in DRAFTERS.items():
            for shape, tree in shapes.items():
                yield (
                    f"{name}, {shape}, {setting}",
                    lambda draft, make=make, t=tree: TreeSpeculation(placed(make(), draft.device), tree=t, seed=0),
                    extra,
                )


def eagle3(is_mapped: bool = False) -> Eagle3:
    """With a reduced vocabulary; `is_mapped`: output rows are a map of embeddings, so texts' tokens are drafted too."""
    made = eagle3_files.shape(hidden=32, extras=("embedding",))
    with TemporaryDirectory() as folder:
        files = eagle3_files.write(folder, made, eagle3_files.random_tensors(made), SPECULATORS)
        head = build_head(read_checkpoint(files))
    if is_mapped:
        mixed = torch.randn(32, 32, generator=torch.Generator().manual_seed(4)) / 8
        head.lm_head.weight.data = head.embedding[head.target_ids] @ mixed
    return Eagle3(head, made["hidden_layers"])


DRAFTERS: dict[str, Callable[[], Any]] = {
    "EAGLE-3": eagle3,
    "EAGLE-3 and tokens of the text": lambda: eagle3(is_mapped=True),
    # Nodes of a depth share a distribution.
    "DFlash": lambda: DFlash(dflash_files.random_head(dflash_files.shape(block=5, draft_vocab=64)), (1, 2)),
    "DSpark": lambda: DFlash(dflash_files.random_head(dflash_files.dspark(block=4, draft_vocab=64)), (1, 2)),
    "Medusa": lambda: Medusa(random_heads(4, has_bias=False)),  # It follows the target by itself.
}


def placed(drafter: Any, device: torch.device) -> Any:
    """The drafter, its head where the models are."""
    if not isinstance(drafter, Medusa):
        to_device(drafter.head) if device == DEVICE else drafter.head.to(device)
    return drafter
