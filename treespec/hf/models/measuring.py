"""Measurements of a model: the time of a pass, and what they hold for: its modules, where they are, and the machine."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from treespec.hf.introspect import ModelFacts
from treespec.hf.machine import processor
from treespec.hf.weights import local_part, own_forward
from treespec.protocols import Capability, CausalScorer
from treespec.tree import ROOT_PARENT

FORMAT = 6
"""The format of what is kept; others are measured again."""


def machine_key(facts: ModelFacts) -> str:
    """A digest of all that a measurement depends on."""
    kinds = Counter(
        (
            type(module).__name__,
            type(vars(module).get(own_forward(module))).__name__,
            *(tuple(local_part(w).shape) for w in own),
        )
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


def _device_name(device: torch.device) -> str:
    backend: Any = getattr(torch, device.type, None)
    return backend.get_device_name(device) if hasattr(backend, "get_device_name") else ""


def time_pass(scorer: CausalScorer, num_nodes: int) -> float:
    """Seconds of a pass of one row over a tree of this many nodes, none of which stays in the cache."""
    is_tree = scorer.capability == Capability.TREE
    parents = [[ROOT_PARENT, *((node - 1) // 2 if is_tree else node - 1 for node in range(1, num_nodes))]]
    tokens = torch.ones(1, num_nodes, dtype=torch.int64, device="cpu")  # On the host, as trees are.
    start = time.perf_counter()
    logits = scorer.extend(tokens, torch.tensor(parents, device="cpu")).logits
    logits[0, -1, 0].item()  # Wait for the device.
    seconds = time.perf_counter() - start
    scorer.commit([()])
    return seconds


class FirstTokenClock:
    """A stopping criterion that stops nothing, and notes when the first step of a call was done.

    Attributes:
        seconds: since the clock was made, until then.
        length: of the texts then, in tokens; transformers' assisted decoding adds several to the prompt at once.
    """

    def __init__(self) -> None:
        self._start, self.seconds, self.length = time.perf_counter(), 0.0, 0

    def __call__(self, input_ids: Int[Tensor, "B L"], scores: Any, **_: Any) -> Bool[Tensor, "B"]:
        """See `transformers.StoppingCriteria`."""
        if not self.length:
            input_ids[0, -1].item()  # Wait for the device.
            self.seconds, self.length = time.perf_counter() - self._start, input_ids.shape[1]
        return input_ids.new_zeros(len(input_ids), dtype=torch.bool)
