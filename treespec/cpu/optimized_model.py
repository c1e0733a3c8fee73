"""`optimize`: a model's linear layers on a CPU by the fastest kernel for each number of rows, measured on the machine.

A tree pass multiplies 1 to 64 rows by every weight matrix. Which product is fastest at how many rows differs between
processors and PyTorch's versions, so it is measured once and kept in the user's cache folder. Norms and the attention
of tree passes need no choice, nor do caches: scorers on CPUs use folded attention and growing buffers by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from treespec.checks import check_flag
from treespec.cpu.attention import FastAttention, native_attention, serve_heads
from treespec.cpu.kernel_plan import KernelPlan, kernel_folder, make_plan
from treespec.cpu.linear_kernels import (
    NUM_ROWS,
    FastForward,
    Kernel,
    Packed,
    Rounded,
    bfloat16_kernel,
    exact_kernels,
    fast_linears,
)
from treespec.cpu.native import NativeError, int8_linear, native_linear, native_norm
from treespec.cpu.norms import FastNorm, serve_norms
from treespec.errors import ConfigError, TreespecError, UnsupportedModelError
from treespec.hf.attention.folded import leave_attention, serve_attention
from treespec.hf.weights import own_forward, weight_counts

_ROUNDED = {torch.bfloat16: "bfloat16", torch.int8: "int8"}


class OptimizedModel:
    """A model whose linear layers run by a plan; `restore()` or leaving the `with` block undoes it.

    Attributes:
        model: the model itself, to be used as before.
        plan: see `KernelPlan`.
    """

    def __init__(
        self, model: nn.Module, modules: Sequence[nn.Linear], plan: KernelPlan, kernels: Mapping[str, Kernel]
    ) -> None:
        self.model = model
        self.plan = plan
        for module in modules:
            vars(module)[own_forward(module)] = FastForward(module, kernels, plan.choices)

    def restore(self) -> None:
        """Give every layer its own `forward` back and free the packed weights; a second call does nothing."""
        restore(self.model)

    def __enter__(self) -> OptimizedModel:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def optimize(
    model: nn.Module, *, dtype: torch.dtype | None = None, is_remeasured: bool = False, is_quick: bool = False
) -> OptimizedModel:
    """Run a CPU model's linear layers by the fastest kernels for few rows, until `restore`.

    The first call for a model's shapes on a machine measures for some ten seconds; the result is kept in
    `$XDG_CACHE_HOME/treespec/optimize` (or `~/.cache/...`), keyed by the layers' shapes, dtype, threads, processor and
    PyTorch's version. Kernels: PyTorch's own, oneDNN with packed weights, and a product that the machine's C++ compiler
    makes at the first use (left out where there is none). Results equal the plain layers' up to the
    rounding of another order of addition. Packed weights take as much memory again as the layers' own.

    Args:
        model: a causal language model, a draft model or a head, with float32 or bfloat16 weights on the CPU. Calls that
            need gradients run as before, and so do layers on other devices and offloaded ones.
        dtype: None keeps the weights' own; the others make a float32 model another one, close to the first. The weights
            themselves are left unchanged. `torch.int8` rounds the weights to 8 bits, one scale per output, and inputs
            to 16: right for heads and draft models, whose rounding costs next to no acceptance and no exactness.
            `torch.bfloat16` rounds weights and inputs, the output embedding excepted, coarsely enough for a near-tie
            to fall differently in passes over one node and over a tree: greedy texts equal that model's own `generate`
            less often than in float32.
        is_remeasured: measure again what is known already, for instance because the machine was busy then.
        is_quick: where nothing is known, measure for a tenth of a second on some of the layers, and keep nothing.

    Raises:
        ConfigError: not a module, an unknown dtype, one that the weights cannot be rounded to, or a model that
            `torch.compile` has wrapped.
        UnsupportedModelError: no linear layer that a kernel could serve.
        NativeError: dtype=torch.int8 without a C++ compiler; dtype=torch.bfloat16 without one and without oneDNN.
    """
    _check(model, dtype)
    check_flag("is_quick", is_quick)
    restore(model)
    modules = fast_linears(model)
    if not modules:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no nn.Linear with float32 or bfloat16 weights on the CPU whose forward is its "
            f"own: optimize serves such models only{_reason(model)}"
        )
    with suppress(NativeError):  # Without a compiler norms and attention are left unchanged.
        serve_norms(model, native_norm(kernel_folder()))
        serve_attention(model, native_attention(kernel_folder()))
        serve_heads(model, native_attention(kernel_folder()))
    if dtype in _ROUNDED and modules[0].weight.dtype == torch.float32:
        return _rounded(model, modules, dtype)
    kernels, missing = exact_kernels(modules[0].weight.dtype, kernel_folder())
    modules = [module for module in modules if module.weight.dtype == modules[0].weight.dtype]
    return OptimizedModel(model, modules, make_plan(modules, kernels, missing, is_remeasured, is_quick), kernels)


def prepack_linears(model: nn.Module, num_rows: int = 16) -> OptimizedModel:
    """Run the model's float32 CPU linear layers from packed weights wherever gradients are off, until `restore`.

    PyTorch's float32 product packs the weights at each call, which for the 4 to 64 rows of a tree pass takes longer
    than the product itself. Results equal the plain layers' up to rounding. The packed copies take as much memory again
    as the linear weights. Weights that are changed in place later are packed again at their next use. Layers of a
    subclass of `nn.Linear`, on another device or with another dtype, or whose `forward` is already replaced, are
    unchanged.

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


def restore(model: nn.Module) -> None:
    """Undo `optimize`; a model that is not optimised is left unchanged."""
    leave_attention(model)
    for module in model.modules():
        if isinstance(vars(module).get("forward"), FastForward | FastNorm | FastAttention):
            del vars(module)["forward"]
        elif isinstance(vars(module).get("_old_forward"), FastForward):
            vars(module)["_old_forward"] = MethodType(nn.Linear.forward, module)


def _reason(model: nn.Module) -> str:
    """Why a model has no layer that a kernel could serve."""
    if offloaded := weight_counts(model.modules()).keys() & {"memory", "disk"}:
        return f" (its weights are offloaded to {' and '.join(sorted(offloaded))}: every pass would have to pack them)"
    if any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        return " (its weights are split over processes, whose layers run as transformers made them)"
    return ""


def _check(model: Any, dtype: torch.dtype | None) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"optimize expects a model or a head (nn.Module), got {type(model).__name__}")
    if hasattr(model, "_orig_mod"):
        raise ConfigError("optimize expects the model itself, not what torch.compile returned for it")
    if dtype not in (None, torch.float32, *_ROUNDED):
        raise ConfigError(f"dtype must be None, torch.float32, torch.bfloat16 or torch.int8, got {dtype}")
    own = next((module.weight.dtype for module in model.modules() if type(module) is nn.Linear), torch.float32)
    if dtype not in (None, own) and own != torch.float32:
        raise ConfigError(f"dtype={dtype} rounds float32 weights, but this model's are {own}: leave dtype out")


def _rounded(model: nn.Module, modules: Sequence[nn.Linear], dtype: torch.dtype) -> OptimizedModel:
    """One kernel for all numbers of rows: a token's logits must not depend on how many nodes are scored with it."""
    name = _ROUNDED[dtype]
    folder = kernel_folder()
    if dtype == torch.bfloat16:
        kernel = Rounded(bfloat16_kernel(folder))
        head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
        for module in modules:
            if module is head:
                _serve_in_float32(module)
        modules = [module for module in modules if module is not head]
    else:
        kernel = int8_linear(folder)
    return OptimizedModel(model, modules, KernelPlan(dict.fromkeys(NUM_ROWS, name)), {name: kernel})


def _serve_in_float32(head: nn.Linear) -> None:
    """Logits of eight bits would tie: greedy decoding would choose by token id."""
    with suppress(NativeError):  # Without a compiler it runs unchanged.
        kernels = {"native": native_linear(kernel_folder())}
        vars(head)[own_forward(head)] = FastForward(head, kernels, dict.fromkeys(NUM_ROWS, "native"))
