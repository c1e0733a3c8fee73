"""Where a model wants its token ids."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def input_device(model: PreTrainedModel) -> torch.device:
    """The device of the input embedding; offloaded weights lie on no device, their accelerate hook knows where to."""
    embedding = model.get_input_embeddings()
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return next(embedding.parameters()).device if device is None else torch.device(device)
