"""Drafters in vLLM that read texts, or the target's states of them, before they draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treespec.vllm.heads import load_served_head
from treespec.vllm.options import Options
from treespec.vllm.pages import OnPages

if TYPE_CHECKING:
    from treespec.vllm.draft_model import ServedModel

    Reader = OnPages | ServedModel


def load_reader(options: Options, model: Any, config: Any, device: torch.device, ranks: Any) -> Reader | None:
    """The head or draft model of these options, without its pages, for vLLM's model of this `ModelConfig`.

    All ranks call this; all but the first, which drafts, get None or a head that is not used.

    Raises as `load_served_head` and `load_served_model`.
    """
    if options.head is not None:
        return load_served_head(options.head, model, config, ranks.all_gather)
    if options.draft_model is None or not ranks.is_first_rank:
        return None
    from treespec.vllm.draft_model import load_served_model  # With transformers' models.

    num_weights = sum(weight.numel() for weight in model.parameters())
    return load_served_model(options.draft_model, config, num_weights, device)
