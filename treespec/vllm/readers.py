"""Drafters in vLLM that read texts, or the target's states of them, before they draft."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from treespec.cpu import optimize
from treespec.errors import TreespecError
from treespec.vllm.files import Files
from treespec.vllm.heads import load_served_head
from treespec.vllm.options import Options
from treespec.vllm.pages import OnPages

if TYPE_CHECKING:
    from treespec.vllm.draft_model import ServedModel

    Reader = OnPages | ServedModel


def load_reader(options: Options, model: Any, vllm_config: Any, device: torch.device, ranks: Any) -> Reader | None:
    """The head or draft model of these options, without its pages, for vLLM's model of this `VllmConfig`.

    All ranks call this; all but the first, which drafts, get None or a head that is not used. For errors see
    `load_served_head` and `load_served_model`.
    """
    config, files = vllm_config.model_config, Files(vllm_config.load_config, options.revision)
    if options.head is not None:
        served = load_served_head(options.head, model, config, files, ranks.all_gather)
        speed_up_head(served.head)
        return served
    if options.draft_model is None or not ranks.is_first_rank:
        return None
    from treespec.vllm.draft_model import load_served_model  # With transformers' models.

    num_weights = sum(weight.numel() for weight in model.parameters())
    return load_served_model(options.draft_model, config, files, num_weights, device)


def speed_up_head(head: nn.Module) -> None:
    """On CPUs, as `speed_up` does: weights in 8 bits, or without a compiler as close as oneDNN has.

    Rounding changes drafts, not the output.
    """
    weight = next(head.parameters())
    for dtype in (torch.int8, torch.bfloat16, None) if weight.dtype == torch.float32 else (None,):
        with suppress(TreespecError):
            if weight.device.type == "cpu":
                optimize(head, dtype=dtype, is_quick=True)
            return
