"""`optimize`: a model's linear layers on a CPU by the fastest kernel for each number of rows, measured on the machine.

A tree pass multiplies 1 to 64 rows by every weight matrix. Which product is fastest at how many rows differs between
processors and PyTorch's versions, so it is measured once and kept in the user's cache folder. Attention and caches need
no choice: scorers on CPUs use folded attention and growing rooms by themselves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType, TracebackType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from treespec.errors import ConfigError, TreespecWarning, UnsupportedModelError
from treespec.hf.cpu.linear_kernels import (
    NUM_ROWS,
    PLAIN,
    FastForward,
    Kernel,
    Rounded,
    exact_kernels,
    fast_linears,
    own_forward,
)
from treespec.hf.cpu.native import int8_linear, processor
from treespec.hf.devices.weights import weight_counts

FORMAT = 1
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""The largest difference from the plain layers that counts as rounding, in units of the outputs' largest one."""
NUM_ROUNDS = 3
CLEAR_GAIN = 0.9
_ROUNDED = {torch.bfloat16: "bfloat16", torch.int8: "int8"}
MOST_BYTES = 1 << 30
"""Weights that are measured, the first layers': more than any processor's cache holds, so that memory is measured."""


@dataclass(frozen=True)
class KernelPlan:
    """Which kernel runs at how many rows, and why.

    Attributes:
        choices: a kernel's name for each number of rows; "plain" is PyTorch's own.
        times_ms: by kernel and number of rows, one product with every measured layer; empty when nothing was measured.
        missing: why kernels were not tried, by name.
    """

    choices: dict[int, str]
    times_ms: dict[str, dict[int, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


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
        self._modules = list(modules)
        for module in modules:
            vars(module)[own_forward(module)] = FastForward(module, kernels, plan.choices)

    @property
    def num_layers(self) -> int:
        return len(self._modules)

    def restore(self) -> None:
        """Give every layer its own `forward` back and free the packed weights; a second call does nothing."""
        restore(self.model)
        self._modules = []

    def __enter__(self) -> OptimizedModel:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def optimize(model: nn.Module, *, dtype: torch.dtype | None = None, is_remeasured: bool = False) -> OptimizedModel:
    """Run a CPU model's linear layers by the fastest kernels for few rows, until `restore`.

    The first call for a model's shapes on a machine measures for some ten seconds; the result is kept in
    `$XDG_CACHE_HOME/treespec/optimize` (or `~/.cache/...`), keyed by the layers' shapes, dtype, threads, processor and
    PyTorch's version. Kernels: PyTorch's own, oneDNN with packed weights, and for float32 a product that the machine's
    C++ compiler makes at the first use (left out where there is none). Results equal the plain layers' up to the
    rounding of another order of addition. Packed weights take as much memory again as the layers' own.

    Args:
        model: a causal language model, a draft model or a head, with float32 or bfloat16 weights on the CPU. Calls that
            want gradients run as before, and so do layers on other devices and offloaded ones.
        dtype: None keeps the weights' own; the others make a float32 model another one, close to the first. The weights
            themselves stay as they are. `torch.int8` rounds the weights to 8 bits, one scale per output, and computes
            in float32: right for heads and draft models, whose rounding costs next to no acceptance and no exactness.
            `torch.bfloat16` rounds weights and inputs, the output embedding excepted, coarsely enough for a near-tie
            to fall differently in passes over one node and over a tree: greedy texts equal that model's own `generate`
            less often than in float32.
        is_remeasured: measure again what is known already, for instance because the machine was busy then.

    Raises:
        ConfigError: not a module, an unknown dtype, or a model that `torch.compile` has wrapped.
        UnsupportedModelError: no linear layer that a kernel could serve.
        NativeError: dtype=torch.int8 without a C++ compiler.
    """
    _check(model, dtype)
    restore(model)
    modules = fast_linears(model)
    if not modules:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no nn.Linear with float32 or bfloat16 weights on the CPU whose forward is its "
            f"own: optimize serves such models only{_reason(model)}"
        )
    if dtype in _ROUNDED and modules[0].weight.dtype == torch.float32:
        return _rounded(model, modules, dtype)
    kernels, missing = exact_kernels(modules[0].weight.dtype, _folder())
    modules = [module for module in modules if module.weight.dtype == modules[0].weight.dtype]
    return OptimizedModel(model, modules, _plan(modules, kernels, missing, is_remeasured), kernels)


def restore(model: nn.Module) -> None:
    """Undo `optimize`; a model that is not optimised stays as it is."""
    for module in model.modules():
        if isinstance(vars(module).get("forward"), FastForward):
            del vars(module)["forward"]
        elif isinstance(vars(module).get("_old_forward"), FastForward):
            vars(module)["_old_forward"] = MethodType(nn.Linear.forward, module)


def _reason(model: nn.Module) -> str:
    """Why a model has no layer that a kernel could serve."""
    if offloaded := weight_counts(model).keys() & {"memory", "disk"}:
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
    if dtype == torch.bfloat16 and not torch.backends.mkldnn.is_available():
        raise ConfigError("dtype=torch.bfloat16 needs a PyTorch built with oneDNN")


def _rounded(model: nn.Module, modules: Sequence[nn.Linear], dtype: torch.dtype) -> OptimizedModel:
    """One kernel for all numbers of rows: a token's logits must not depend on how many nodes are scored with it."""
    if dtype == torch.bfloat16:
        # Logits of eight bits would tie: greedy decoding would choose by token id.
        head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
        modules = [module for module in modules if module is not head]
    name = _ROUNDED[dtype]
    kernel = Rounded() if dtype == torch.bfloat16 else int8_linear(_folder())
    return OptimizedModel(model, modules, KernelPlan(dict.fromkeys(NUM_ROWS, name)), {name: kernel})


def _plan(
    modules: Sequence[nn.Linear], kernels: dict[str, Kernel], missing: dict[str, str], is_remeasured: bool
) -> KernelPlan:
    """The plan from the user's cache folder, or a measured one, which is kept there."""
    facts = _facts(modules, kernels)
    path = _folder() / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.json"
    wrong = _drop_wrong(modules, kernels)
    missing = missing | wrong
    known = None if is_remeasured or wrong else _read(path, facts, kernels)
    if known is not None:
        return KernelPlan(known.choices, known.times_ms, missing)
    times = measure(modules, kernels)
    choices = choose(times)
    write_json(path, {"facts": facts, "choices": choices, "times_ms": times})
    return KernelPlan(choices, times, missing)


@torch.no_grad()
def measure(modules: Sequence[nn.Linear], kernels: Mapping[str, Kernel]) -> dict[str, dict[int, float]]:
    """Milliseconds by kernel and number of rows of one product with every layer, the best of paired rounds."""
    modules = _first(modules, MOST_BYTES)
    packed = {name: [kernel.pack(m.weight.detach()) for m in modules] for name, kernel in kernels.items()}
    times = {name: dict.fromkeys(NUM_ROWS, float("inf")) for name in (PLAIN, *kernels)}
    for count in NUM_ROWS:
        inputs = {m.in_features: torch.randn(count, m.in_features, dtype=m.weight.dtype) for m in modules}
        for _ in range(NUM_ROUNDS):
            for name in times:
                start = time.perf_counter()
                if name == PLAIN:
                    for module in modules:
                        nn.functional.linear(inputs[module.in_features], module.weight, module.bias)
                else:
                    run = kernels[name].run
                    for module, weight in zip(modules, packed[name], strict=True):
                        run(inputs[module.in_features], weight, module.bias, module.out_features)
                times[name][count] = min(times[name][count], 1e3 * (time.perf_counter() - start))
    return {name: {count: round(value, 3) for count, value in row.items()} for name, row in times.items()}


def choose(times_ms: Mapping[str, Mapping[int, float]]) -> dict[int, str]:
    """The kernel that is best on the whole, others only where they are clearly faster: each takes memory of its own."""
    favourite = min(times_ms, key=lambda name: sum(map(math.log, times_ms[name].values())))
    choices = {}
    for count in NUM_ROWS:
        best = min(times_ms, key=lambda name: times_ms[name][count])
        is_clear = times_ms[best][count] < CLEAR_GAIN * times_ms[favourite][count]
        choices[count] = best if is_clear else favourite
    return choices


def _first(modules: Sequence[nn.Linear], most_bytes: int) -> list[nn.Linear]:
    chosen: list[nn.Linear] = []
    for module in modules:
        most_bytes -= module.weight.nbytes
        if chosen and most_bytes < 0:
            break
        chosen.append(module)
    return chosen


@torch.no_grad()
def _drop_wrong(modules: Sequence[nn.Linear], kernels: dict[str, Kernel]) -> dict[str, str]:
    """Remove kernels whose results are not the plain layers' on one layer of every shape; returns the reasons."""
    wrong: dict[str, str] = {}
    generator = torch.Generator().manual_seed(0)
    for module in {(m.weight.shape, m.bias is None): m for m in modules}.values():
        dtype = module.weight.dtype
        inputs = torch.randn(5, module.in_features, generator=generator).to(dtype)
        expected = nn.functional.linear(inputs, module.weight, module.bias)
        for name, kernel in kernels.items():
            outputs = kernel.run(inputs, kernel.pack(module.weight.detach()), module.bias, module.out_features)
            gap, largest = (outputs - expected).abs().max(), expected.abs().max()
            if not gap <= TOLERANCE[dtype] * largest:
                wrong[name] = f"differs by {float(gap):.2g} from PyTorch's own at outputs of up to {float(largest):.2g}"
    for name, reason in wrong.items():
        del kernels[name]
        warnings.warn(f"optimize leaves out the kernel {name!r}: it {reason}", TreespecWarning, stacklevel=4)
    return wrong


def _facts(modules: Sequence[nn.Linear], kernels: Mapping[str, Kernel]) -> dict[str, Any]:
    """What a measurement holds for, as JSON has it."""
    return {
        "format": FORMAT,
        "shapes": hashlib.sha256(str([tuple(m.weight.shape) for m in modules]).encode()).hexdigest(),
        "dtype": str(modules[0].weight.dtype),
        "threads": torch.get_num_threads(),
        "processor": hashlib.sha256(processor().encode()).hexdigest(),
        "torch": torch.__version__,
        "kernels": sorted(kernels),
    }


def _read(path: Path, facts: dict[str, Any], kernels: Mapping[str, Kernel]) -> KernelPlan | None:
    """A kept plan; None, with a warning, for a file that is not one."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text())
        choices = {int(count): str(name) for count, name in data["choices"].items()}
        times = {str(name): {int(n): float(t) for n, t in row.items()} for name, row in data["times_ms"].items()}
        is_known = set(choices) == set(NUM_ROWS) and set(choices.values()) <= {PLAIN, *kernels}
        if data["facts"] == facts and is_known:
            return KernelPlan(choices, times)
        reason = "it is of another model or machine"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(f"{path} is ignored and written again: {reason}", TreespecWarning, stacklevel=5)
    return None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a measurement, whole or not at all; warns where it cannot be kept."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(data, indent=1) + "\n")
        scratch.replace(path)
    except OSError as error:
        message = f"the measurement cannot be kept in {path.parent} ({error}): the next process measures again"
        warnings.warn(message, TreespecWarning, stacklevel=5)


def cache_folder() -> Path:
    """Where measurements of this machine are kept: `$XDG_CACHE_HOME/treespec` or `~/.cache/treespec`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treespec"


def _folder() -> Path:
    return cache_folder() / "optimize"
