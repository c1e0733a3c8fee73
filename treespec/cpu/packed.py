"""Faster passes over a few rows on a CPU: float32 linear layers through oneDNN with weights packed ahead.

PyTorch's float32 product packs the weights at each call, which for the 4 to 64 rows of a tree pass takes longer than
the product itself.
"""

import torch
from torch import nn

from treespec.cpu.kernel_plan import KernelPlan
from treespec.cpu.linear_kernels import NUM_ROWS, Packed, fast_linears
from treespec.cpu.optimized_model import OptimizedModel
from treespec.errors import TreespecError


def prepack_linears(model: nn.Module, num_rows: int = 16) -> OptimizedModel:
    """Run the model's float32 CPU linear layers from packed weights wherever gradients are off, until `restore`.

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
    modules = [module for module in fast_linears(model) if module.weight.dtype == torch.float32]
    if not modules:
        raise TreespecError("prepack_linears found no float32 nn.Linear on the CPU: load the model with dtype=float32")
    plan = KernelPlan(dict.fromkeys(NUM_ROWS, "packed"))
    return OptimizedModel(model, modules, plan, {"packed": Packed(num_rows)})
