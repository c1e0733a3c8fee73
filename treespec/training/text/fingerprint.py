"""Which model it is, wherever its files lie: what was computed with one model is not taken for another's."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

NUM_SAMPLES = 16

PLACES = ("_name_or_path", "transformers_version")
"""Entries of configurations that say where a model comes from and who wrote it."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(model: PreTrainedModel) -> str:
    """A short hash of a model's configuration and weights: of the sum of their bits and of some of their numbers."""
    digest = hashlib.sha256(json.dumps(_without_places(model.config.to_dict()), sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name} {list(weight.shape)} {_bit_sum(weight)} {_samples(weight)}".encode())
    return digest.hexdigest()[:16]


def _without_places(entries: Any) -> Any:
    if not isinstance(entries, dict):
        return entries
    return {name: _without_places(entry) for name, entry in entries.items() if name not in PLACES}


def _bit_sum(weight: Tensor) -> int:
    """Exact in any order of addition, which a sum of floats is not."""
    return int(weight.detach().contiguous().view(BITS[weight.element_size()]).sum(dtype=torch.int64))


def _samples(weight: Tensor) -> list[float]:
    flat = weight.detach().flatten()
    return flat[:: max(1, len(flat) // NUM_SAMPLES)].double().tolist()
