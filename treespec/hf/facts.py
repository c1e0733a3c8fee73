"""Facts of a model that its configuration does not tell."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def input_device(model: PreTrainedModel) -> torch.device:
    """The device of the input embedding; offloaded weights lie on no device, their accelerate hook knows where to."""
    embedding = model.get_input_embeddings()
    device = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    return next(embedding.parameters()).device if device is None else torch.device(device)


def num_logits(model: PreTrainedModel) -> int:
    """V: how many logits the model's head gives, which is more than `config.vocab_size` where the head is padded."""
    head = model.get_output_embeddings()
    if head is None:  # A model that does not tell which module its head is.
        return model.config.get_text_config().vocab_size
    return getattr(head, "out_features", None) or next(head.parameters()).shape[0]
