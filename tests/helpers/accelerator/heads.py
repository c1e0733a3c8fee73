"""Trained heads on the pretended accelerator: tiny random heads, and the cases that draft with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from helpers.accelerator.device import DEVICE, to_device
from torch import nn

from treespec import Chain, KAry, TreeSpeculation
from treespec.heads import DFlash, Eagle3, Medusa, MedusaHead, MedusaHeads
from treespec.heads.dflash.module import DFlashConfig, DFlashHead
from treespec.heads.eagle3.module import Eagle3Config, Eagle3Head
from treespec.heads.modules.layers import LayerConfig
from treespec.protocols import Drafter

HIDDEN, VOCAB, DRAFT_VOCAB = 32, 64, 40
"""Sizes of the models' hidden states and vocabulary, see `tiny_models`, and of a reduced vocabulary."""
LAYER = LayerConfig(HIDDEN, 40, num_heads=4, num_key_heads=2, head_dim=8)
FULL: dict[str, Any] = {"vocab_size": VOCAB, "draft_vocab_size": VOCAB, "target_hidden_size": HIDDEN}


def head_cases(settings: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Callable[[Any], TreeSpeculation], Any]]:
    """As `waits.cases`; `settings` are further arguments of `generate` by name."""
    shapes = {"tree of 8": 8, "2 x 2": KAry((2, 2)), "chain of 4": Chain(4)}
    for setting, extra in settings.items():
        for name, make in DRAFTERS.items():
            for shape, tree in shapes.items():
                yield (
                    f"{name}, {shape}, {setting}",
                    lambda draft, make=make, t=tree: TreeSpeculation(make(draft.device), tree=t, seed=0),
                    extra,
                )


def eagle3(device: torch.device) -> Drafter:
    """EAGLE-3 with a reduced vocabulary."""
    config = Eagle3Config(LAYER, VOCAB, DRAFT_VOCAB, HIDDEN)
    return Eagle3(random_head(Eagle3Head, config, device), (0, 1, 2))


def dflash(device: torch.device) -> Drafter:
    """DFlash, whose nodes of a depth share a distribution."""
    config = DFlashConfig(LAYER, num_features=2, block_size=5, mask_token=VOCAB - 1, **FULL)
    return DFlash(random_head(DFlashHead, config, device), (1, 2))


def dspark(device: torch.device) -> Drafter:
    """DFlash with a Markov head."""
    extras: dict[str, Any] = {"has_anchor_output": True, "markov_rank": 4}
    config = DFlashConfig(LAYER, num_features=2, block_size=4, mask_token=VOCAB - 1, **FULL, **extras)
    return DFlash(random_head(DFlashHead, config, device), (1, 2))


def medusa(device: torch.device) -> Drafter:
    """Four heads of one block."""
    generator = torch.Generator().manual_seed(0)

    def head() -> MedusaHead:
        weight, output = (torch.randn(size, HIDDEN, generator=generator) for size in (HIDDEN, VOCAB))
        return MedusaHead(((0.1 * weight, None),), 0.5 * output)

    heads = MedusaHeads(tuple(head() for _ in range(4)))
    return Medusa(heads if device.type == "cpu" else heads.to(device, torch.float32))


DRAFTERS: dict[str, Callable[[torch.device], Drafter]] = {
    "EAGLE-3": eagle3,
    "DFlash": dflash,
    "DSpark": dspark,
    "Medusa": medusa,
}


def random_head(kind: type[Eagle3Head | DFlashHead], config: Any, device: torch.device) -> Any:
    """A head of random weights, always the same, where the models are."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(config.vocab_size)[-config.draft_vocab_size :]
    head = kind(config, torch.randn(VOCAB, HIDDEN, generator=generator), ids)
    for weight in head.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, 0.0, 0.3, generator=generator)
    return to_device(head.eval()) if device == DEVICE else head.eval().to(device)
