"""Weights that are not on a device of this process: offloaded to memory or disk by accelerate, or split."""

from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn


def offloaded_to(module: nn.Module, name: str) -> str:
    """ "memory" or "disk", by what accelerate's hook fetches a weight from."""
    source: Any = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
    prefix = getattr(source, "prefix", "")
    source = getattr(source, "dataset", source)
    in_memory = getattr(source, "state_dict", source)  # For weights on disk the loader has an index.
    return "memory" if isinstance(in_memory, dict) and f"{prefix}{name}" in in_memory else "disk"


def whole_weight(module: nn.Module) -> Tensor:
    """`module.weight` on the device where the module runs: fetched if it is offloaded, gathered from all processes if
    each has a part, which makes this a collective operation."""
    is_offloaded = any(weight.device.type == "meta" for weight in module.parameters(recurse=False))
    fetched = nullcontext
    if is_offloaded:
        from accelerate.utils import align_module_device as fetched  # It is installed wherever weights are offloaded.
    with fetched(module):
        weight: Any = module.weight
        return weight.full_tensor() if hasattr(weight, "full_tensor") else weight
