"""Whether quantised layers round their activations too, found by what they return, whichever package made them."""

from typing import Any

import torch

from treespec.hf.introspect import ModelFacts
from treespec.hf.models.capability import MeasuredOnce

LARGEST_SUM_ERROR = 0.004
"""Rounding in float16 makes .001, activations of 8 bits .01 and more."""
_PLAIN_WEIGHTS = {"Parameter", "Tensor", "NoneType", "method", "DTensor"}
"""The types of weights that are not quantised; a DTensor is a shard of one."""
_known: MeasuredOnce[bool] = MeasuredOnce()


def rounds_activations(facts: ModelFacts) -> bool:
    """Whether a quantised layer rounds its input: where only weights are quantised, its outputs add up as inputs do.

    In half precision that cannot be seen, nor does it matter: its own rounding is as large. There it is False.
    """
    if facts.dtype not in (torch.float32, torch.float64, torch.float16):
        return False
    layers = (module for module in facts.modules.values() if _is_quantised(module))
    return _known.get(facts, lambda: not all(_sum_error(layer, facts) <= LARGEST_SUM_ERROR for layer in layers))


def _is_quantised(layer: Any) -> bool:
    """Whether a linear layer has quantised weights, by their type, or comes from a package that quantises."""
    weight = getattr(layer, "weight", None)
    kinds = {type(weight).__name__, type(getattr(weight, "_local_tensor", weight)).__name__}
    is_own = type(layer).__module__.split(".")[0] in ("torch", "transformers", "peft", "treespec")
    return hasattr(layer, "in_features") and not (kinds <= _PLAIN_WEIGHTS and is_own)


def _sum_error(layer: Any, facts: ModelFacts) -> float:
    """By how much a layer's output for a sum differs from the sum of its outputs, relative to it; 1 where it fails."""
    generator = torch.Generator("cpu").manual_seed(0)
    first, second = torch.randn(2, layer.in_features, generator=generator, dtype=torch.float32, device="cpu")
    rows = torch.stack([first + second, first, second, -first - second])
    try:
        total, *parts, negative = layer(rows.to(facts.device, facts.dtype)).float()
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        return 1.0
    bias = (total + negative) / 2
    return float((total - sum(parts) + bias).square().mean().sqrt() / (total - bias).square().mean().sqrt())
