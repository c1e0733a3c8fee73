"""What measurements of a model hold for: its modules, where they are, and the machine."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import torch
from torch import nn

from treespec.hf.introspect import ModelFacts
from treespec.hf.machine import processor
from treespec.hf.weights import local_part, own_forward

FORMAT = 6
"""The format of what is kept; others are measured again."""


def machine_key(facts: ModelFacts) -> str:
    """A digest of all that a measurement depends on."""
    kinds = Counter(
        (type(module).__name__, _forward_kind(module), *(tuple(local_part(w).shape) for w in own))
        for module in facts.modules.values()
        if (own := [weight for weight in module._parameters.values() if weight is not None])
    )
    device = facts.device
    hardware = processor() if device.type == "cpu" else f"{device.type} {_device_name(device)}"
    about = [
        FORMAT,
        sorted(map(str, kinds.items())),
        sorted(facts.weight_counts),
        sorted(map(str, facts.weights)),
        str(facts.dtype),
        facts.forward is facts.model,
        torch.get_num_threads(),
        hardware,
        torch.__version__,
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _forward_kind(module: nn.Module) -> str:
    return type(vars(module).get(own_forward(module))).__name__


def _device_name(device: torch.device) -> str:
    backend: Any = getattr(torch, device.type, None)
    return backend.get_device_name(device) if hasattr(backend, "get_device_name") else ""
