"""A model's weights wherever they are: on devices, offloaded to memory or disk by accelerate, split over processes."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

OFFLOADED_COST = 8
"""How much longer a pass takes for a weight that it has to fetch; of SmolLM2-135M on disk 6.5 times was measured."""


def weight_counts(model: nn.Module) -> Counter[str]:
    """How many weights of this process are where: on a device ("cpu", "cuda:0") or offloaded to "memory" or "disk"."""
    counts: Counter[str] = Counter()
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            where = _offloaded_to(module, name) if weight.device.type == "meta" else str(weight.device)
            counts[where] += local_part(weight).numel()
    return counts


def read_cost(counts: Counter[str]) -> int:
    """What a pass reads in this process: its weights, of which offloaded ones count `OFFLOADED_COST` times."""
    return counts.total() + (OFFLOADED_COST - 1) * (counts["memory"] + counts["disk"])


def whole_weight(module: nn.Module) -> Tensor:
    """`module.weight` on the device where the module runs: fetched if it is offloaded, gathered from all processes if
    each has a part, which makes this a collective operation."""
    is_offloaded = any(weight.device.type == "meta" for weight in module.parameters(recurse=False))
    with _fetched(module) if is_offloaded else nullcontext():
        weight: Any = module.weight
        return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def local_part(weight: Tensor) -> Tensor:
    """The part of a weight that this process has."""
    sharded: Any = weight
    return sharded.to_local() if hasattr(sharded, "to_local") else weight


def _fetched(module: nn.Module) -> Any:
    from accelerate.utils import align_module_device  # It is installed wherever weights are offloaded.

    return align_module_device(module)


def _offloaded_to(module: nn.Module, name: str) -> str:
    """ "memory" or "disk", by what accelerate's hook fetches a weight from."""
    source: Any = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
    prefix = getattr(source, "prefix", "")
    source = getattr(source, "dataset", source)
    in_memory = getattr(source, "state_dict", source)  # For weights on disk the loader has an index.
    return "memory" if isinstance(in_memory, dict) and f"{prefix}{name}" in in_memory else "disk"


def own_forward(module: nn.Module) -> str:
    """The attribute with the module's own `forward`: accelerate's hooks, which move inputs, call it by another name."""
    return "_old_forward" if "_old_forward" in vars(module) else "forward"


def pack_weights(model: nn.Module) -> None:
    """Let forwards that run by packed weights, such as those of `optimize`, pack what compiled passes read."""
    for module in model.modules():
        forward = vars(module).get(own_forward(module))
        if pack := getattr(forward, "pack", None):
            pack()
