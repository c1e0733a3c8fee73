"""Ways to run a model's `nn.Linear` layers on a CPU, and their `forward` that picks one by the number of rows."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from treespec.cpu.native import NativeError, NativeLinear, bfloat16_linear, native_linear
from treespec.hf.machine import processor
from treespec.hf.weights import own_forward

NUM_ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
"""Numbers of rows at which kernels are measured; others take the next larger one's choice."""

PLAIN = "plain"
_LAYOUT_ROWS = 16


class Kernel(Protocol):
    """A product with its own layout of the weights."""

    def pack(self, weight: Tensor) -> Tensor:
        """Weights [out, in] in the kernel's layout."""
        ...

    def run(self, inputs: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
        """[..., in] to [..., out] in the dtype of the inputs."""
        ...


@dataclass(frozen=True)
class Packed:
    """oneDNN with weights packed ahead, in their own dtype and in the layout for this many rows."""

    num_rows: int = _LAYOUT_ROWS

    def pack(self, weight: Tensor) -> Tensor:
        return torch.ops.mkldnn._reorder_linear_weight(weight, self.num_rows)

    def run(self, inputs: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")


@dataclass(frozen=True)
class Rounded:
    """A kernel for bfloat16 with weights and inputs rounded to it, sums in float32 and outputs rounded once more."""

    kernel: Kernel

    def pack(self, weight: Tensor) -> Tensor:
        return self.kernel.pack(weight.bfloat16())

    def run(self, inputs: Tensor, packed: Tensor, bias: Tensor | None, num_outputs: int) -> Tensor:
        bias = None if bias is None else bias.bfloat16()
        return self.kernel.run(inputs.bfloat16(), packed, bias, num_outputs).to(inputs.dtype)


def exact_kernels(dtype: torch.dtype, folder: Path) -> tuple[dict[str, Kernel], dict[str, str]]:
    """Kernels that keep float32 or bfloat16, by name, and why others are missing; the native one is in `folder`."""
    found: dict[str, Kernel] = {}
    missing: dict[str, str] = {}
    if has_onednn(dtype):
        found["packed"] = Packed()
    else:
        missing["packed"] = f"oneDNN packs no {dtype} here: PyTorch was built without it, or the processor cannot"
    try:
        found["native"] = native_linear(folder) if dtype == torch.float32 else bfloat16_linear(folder)
    except NativeError as error:
        missing["native"] = str(error)
    return found, missing


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of a dtype here; those of bfloat16 it packs on few processors."""
    is_known = dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.backends.mkldnn.is_available() and is_known


def bfloat16_kernel(folder: Path) -> Kernel:
    """One kernel for all numbers of rows: processors with matrix units (AMX), which oneDNN uses, need no other.

    Raises `NativeError`: oneDNN is missing, and the native product cannot be compiled or loaded.
    """
    if has_onednn(torch.bfloat16) and "amx_bf16" in processor().split():
        return Packed()
    try:
        return bfloat16_linear(folder)
    except NativeError:
        if has_onednn(torch.bfloat16):
            return Packed()
        raise


class _Packed:
    """One weight as kernels packed it, valid until the weight changes.

    Writes through `.data`, by which PEFT merges adapters, raise no version: some of the numbers are looked at, which a
    change of all of them changes.
    """

    def __init__(self, weight: Tensor | None = None) -> None:
        self.weights: dict[str, Tensor] = {}
        self._weight = weight  # Kept, as the words below are read from its memory.
        if weight is not None:
            self._version, self._pointer = weight._version, weight.data_ptr()
            self._watched = _words(weight)
            self._values = [word.value for word in self._watched]

    def are_of(self, weight: Tensor) -> bool:
        """Whether this weight is the one that was packed, and has not changed since."""
        if self._weight is not weight or self._version != weight._version or self._pointer != weight.data_ptr():
            return False
        return [word.value for word in self._watched] == self._values  # Asked at every product.


def _words(weight: Tensor) -> list[ctypes.c_uint64]:
    """Five words, two float32 numbers or four of bfloat16 each, of a contiguous weight's memory from start to end."""
    last = weight.nbytes - ctypes.sizeof(ctypes.c_uint64)
    offsets = [last * number // 4 for number in range(5)] if last >= 0 and weight.is_contiguous() else []
    return [ctypes.c_uint64.from_address(weight.data_ptr() + offset) for offset in offsets]


class FastForward:
    """Replaces the `forward` of one `nn.Linear`.

    Calls that need a gradient or have another dtype than the weights run as they would without it. In graphs of
    `torch.compile` the native product is an operator, for weights that `pack_weights` packed; other kernels are left to
    the compiler. Weights are packed at a kernel's first use and packed again after they were changed.

    `choices`: for each of `NUM_ROWS` one of the `kernels` by name, or `PLAIN`; `dtype`: of the weights that these are
    made for, by default the module's.
    """

    def __init__(
        self,
        module: nn.Linear,
        kernels: Mapping[str, Kernel],
        choices: Mapping[int, str],
        dtype: torch.dtype | None = None,
    ) -> None:
        self._module = module
        self._dtype = module.weight.dtype if dtype is None else dtype
        self._kernels = kernels
        self._choices = choices
        self._names = [choices[count] for count in NUM_ROWS]
        self._packed = _Packed()

    def __call__(self, inputs: Tensor) -> Tensor:
        module = self._module
        weight = module.weight
        is_known = inputs.dtype == weight.dtype == self._dtype and weight.is_cpu
        is_plain = torch.is_grad_enabled() or not is_known
        if is_plain or torch.is_autocast_enabled("cpu"):
            return nn.Linear.forward(module, inputs)
        if torch.compiler.is_compiling():
            return self._traced(inputs)
        num_rows = inputs.numel() // max(inputs.shape[-1], 1)
        name = self._names[min(bisect_left(NUM_ROWS, num_rows), len(NUM_ROWS) - 1)]
        if name == PLAIN:
            return nn.Linear.forward(module, inputs)
        kernel = self._kernels[name]
        return kernel.run(inputs, self._packed_weight(name, kernel, weight), module.bias, module.out_features)

    def _traced(self, inputs: Tensor) -> Tensor:
        """In a graph that is being compiled: the native product, if its weights were packed, or the plain layer."""
        module, num_rows = self._module, inputs.numel() // max(inputs.shape[-1], 1)
        name = self._names[min(sum(count < num_rows for count in NUM_ROWS), len(NUM_ROWS) - 1)]
        kernel = self._kernels.get(name)
        if not isinstance(kernel, NativeLinear) or name not in self._packed.weights:
            return nn.Linear.forward(module, inputs)
        # The operator is known to the compiler, which cannot look into the library.
        linear = torch.ops.treespec.linear
        return linear(inputs, self._packed.weights[name], module.bias, module.out_features, kernel.function)

    def pack(self) -> None:
        """Pack for the native product what graphs are to read."""
        if self._module.weight.dtype != self._dtype:
            return
        for name, kernel in self._kernels.items():
            if isinstance(kernel, NativeLinear) and name in self._names:
                self._packed_weight(name, kernel, self._module.weight)

    def __deepcopy__(self, memo: dict[int, Any]) -> FastForward:
        """For a copy of the model, whose layer it serves."""
        return FastForward(deepcopy(self._module, memo), self._kernels, self._choices, self._dtype)

    def __getstate__(self) -> dict[str, Any]:
        """For pickled models, without the packed weights."""
        return vars(self) | {"_packed": _Packed()}

    def _packed_weight(self, name: str, kernel: Kernel, weight: Tensor) -> Tensor:
        known = self._packed
        if not known.are_of(weight):
            self._packed = known = _Packed(weight)
        packed = known.weights.get(name)
        if packed is None:
            packed = known.weights[name] = kernel.pack(weight.detach())
        return packed


def fast_linears(model: nn.Module) -> list[nn.Linear]:
    """The layers that a kernel can serve: plain `nn.Linear` on the CPU whose forward nobody but accelerate replaced."""
    return [module for module in model.modules() if type(module) is nn.Linear and _is_served(module)]


def has_fast_linears(model: nn.Module) -> bool:
    """Whether kernels serve some of the layers."""
    return any(isinstance(vars(module).get(own_forward(module)), FastForward) for module in model.modules())


def _is_served(module: nn.Linear) -> bool:
    weight = module.weight
    replaced = vars(module).get(own_forward(module))
    is_kept = getattr(replaced, "__func__", replaced) in (None, nn.Linear.forward) and not weight.is_inference()
    # A quantised weight, and a part of a split one, is a tensor subclass whose products its package computes.
    is_whole = type(weight) is nn.Parameter
    return is_kept and is_whole and weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
