"""A hash that tells models apart wherever their files are, so that one model's results are not used for another."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

NUM_SAMPLES = 16

ORIGIN = ("_name_or_path", "transformers_version")
"""Entries of configurations that differ between copies of one model."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(model: PreTrainedModel) -> str:
    """A short hash of a model's configuration, of the sums of its weights' bits and of some of its weights."""
    digest = hashlib.sha256(json.dumps(_without_origin(model.config.to_dict()), sort_keys=True, default=str).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name} {list(weight.shape)} {_bit_sum(weight)} {_samples(weight)}".encode())
    return digest.hexdigest()[:16]


def _without_origin(entries: Any) -> Any:
    if not isinstance(entries, dict):
        return entries
    return {name: _without_origin(entry) for name, entry in entries.items() if name not in ORIGIN}


def _bit_sum(weight: Tensor) -> int:
    """The same in any order of addition, unlike a sum of floats."""
    return int(weight.detach().contiguous().view(BITS[weight.element_size()]).sum(dtype=torch.int64))


def _samples(weight: Tensor) -> list[float]:
    flat = weight.detach().flatten()
    return flat[:: max(1, len(flat) // NUM_SAMPLES)].double().tolist()
