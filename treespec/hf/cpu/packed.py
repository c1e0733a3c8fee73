"""Faster passes over a few rows on a CPU: float32 linear layers through oneDNN with weights packed ahead.

PyTorch's float32 product packs the weights at each call, which for the 4 to 64 rows of a tree pass takes longer than
the product itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor, nn

from treespec.errors import TreespecError


class PrepackedLinears:
    """The linear layers of a model that run from packed weights; `remove()` or leaving the `with` block undoes it."""

    def __init__(self, modules: list[nn.Linear], num_rows: int) -> None:
        self._modules = modules
        for module in modules:
            vars(module)["forward"] = _packed_forward(module, num_rows)

    @property
    def num_layers(self) -> int:
        return len(self._modules)

    def remove(self) -> None:
        for module in self._modules:
            vars(module).pop("forward", None)
        self._modules = []

    def __enter__(self) -> PrepackedLinears:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.remove()


def prepack_linears(model: nn.Module, num_rows: int = 16) -> PrepackedLinears:
    """Run the model's float32 CPU linear layers from packed weights wherever gradients are off.

    Results equal the plain layers' up to rounding. The packed copies take as much memory again as the linear weights.
    Weights that are changed in place later are packed again at their next use. Layers of a subclass of `nn.Linear`,
    on another device or with another dtype, or whose `forward` is already replaced, are unchanged.

    Args:
        model: any module.
        num_rows: the number of rows (tree nodes times batch size) to choose the layout for; others work as well.

    Raises `TreespecError`: PyTorch was built without oneDNN, or the model has no such layer.
    """
    if not torch.backends.mkldnn.is_available():
        raise TreespecError("prepack_linears needs a PyTorch built with oneDNN (torch.backends.mkldnn is unavailable)")
    modules = [m for m in model.modules() if type(m) is nn.Linear and _is_packable(m)]
    if not modules:
        raise TreespecError("prepack_linears found no float32 nn.Linear on the CPU: load the model with dtype=float32")
    return PrepackedLinears(modules, num_rows)


def _is_packable(module: nn.Linear) -> bool:
    weight = module.weight
    is_replaced = "forward" in vars(module)
    return (
        not is_replaced and weight.device.type == "cpu" and weight.dtype == torch.float32 and not weight.is_inference()
    )


def _packed_forward(module: nn.Linear, num_rows: int) -> Callable[[Tensor], Tensor]:
    weight = module.weight
    packed = torch.empty(0)
    version = -1

    def forward(inputs: Tensor) -> Tensor:
        """inputs float32 [..., in_features] -> float32 [..., out_features]"""
        nonlocal weight, packed, version
        if torch.is_grad_enabled() or inputs.dtype != torch.float32:
            return nn.Linear.forward(module, inputs)
        if version != module.weight._version or weight is not module.weight:
            weight, version = module.weight, module.weight._version
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), num_rows)
        return torch.ops.mkldnn._linear_pointwise(inputs, packed, module.bias, "none", [], "")

    return forward
