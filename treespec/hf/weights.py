"""A model's weights in this process: how many are where, and what a pass reads of them."""

from collections import Counter
from collections.abc import Iterable

from torch import Tensor, nn

from treespec.hf.add_ons import ADD_ONS

OFFLOADED_COST = 8
"""How much longer a pass takes for a weight that it has to fetch; of SmolLM2-135M on disk 6.5 times was measured."""


def weight_counts(modules: Iterable[nn.Module]) -> Counter[str]:
    """How many of the modules' own weights, in this process, are where: "cpu", "cuda:0", offloaded "memory", "disk"."""
    counts: Counter[str] = Counter()
    for module in modules:
        for name, weight in module._parameters.items():
            if weight is None:
                continue
            is_offloaded = weight.device.type == "meta"
            where = ADD_ONS["offloaded to"](module, name) if is_offloaded else str(weight.device)
            counts[where] += local_part(weight).numel()
    return counts


def read_cost(counts: Counter[str]) -> int:
    """The number of weights that a pass reads in this process; offloaded ones count `OFFLOADED_COST` times."""
    return counts.total() + (OFFLOADED_COST - 1) * (counts["memory"] + counts["disk"])


def local_part(weight: Tensor) -> Tensor:
    """The part of a weight that this process has."""
    return getattr(weight, "to_local", lambda: weight)()


def whole_weight(module: nn.Module) -> Tensor:
    """`module.weight` on the device where the module runs, wherever it is; a collective operation where it is split."""
    weights = list(module.parameters(recurse=False))
    is_here = all(weight.device.type != "meta" and local_part(weight) is weight for weight in weights)
    return module.get_parameter("weight") if is_here else ADD_ONS["whole weight"](module)


def own_forward(module: nn.Module) -> str:
    """The attribute with the module's own `forward`: accelerate's hooks, which move inputs, call it by another name."""
    return "_old_forward" if "_old_forward" in vars(module) else "forward"


def pack_weights(model: nn.Module) -> None:
    """Let forwards that run by packed weights, such as those of `optimize`, pack what compiled passes read."""
    for module in model.modules():
        forward = vars(module).get(own_forward(module))
        if pack := getattr(forward, "pack", None):
            pack()
