"""Which kernel a model's linear layers run by, for each number of rows: measured once per machine, kept as a file."""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treespec.cpu.linear_kernels import NUM_ROWS, PLAIN, Kernel
from treespec.errors import TreespecWarning
from treespec.hf.machine import OtherWork, is_busy, is_quiet, processor
from treespec.hf.user_cache import cache_folder, read_kept, write_kept

FORMAT = 4
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""The largest difference from the plain layers that counts as rounding, in units of the outputs' largest one."""
NUM_ROUNDS = 3
QUICK_ROWS, QUICK_BYTES = (1, 16), 1 << 25
"""Numbers of rows, and weights, that are measured where there is no time: larger than most processors' caches."""
CLEAR_GAIN = 0.9
MOST_BYTES = 1 << 30
"""Weights that are measured, the first layers': more than any processor's cache holds, so that memory is measured."""


@dataclass(frozen=True)
class KernelPlan:
    """Which kernel runs at how many rows, and why.

    Attributes:
        choices: a kernel's name for each number of rows; "plain" is PyTorch's own.
        times_ms: by kernel and number of rows, one product with every measured layer; empty when nothing was measured.
        missing: why kernels were not tried, by name.
        others_share: see `OtherWork`, while it was measured.
    """

    choices: dict[int, str]
    times_ms: dict[str, dict[int, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    others_share: float | None = None


def make_plan(
    modules: Sequence[nn.Linear],
    kernels: dict[str, Kernel],
    missing: dict[str, str],
    is_remeasured: bool,
    is_quick: bool,
) -> KernelPlan:
    """The plan from the user's cache folder, or a measured one, which is kept there unless it `is_quick`.

    What was measured on a busy machine is measured again when it is quiet, and there is time.
    """
    facts = _facts(modules, kernels)
    path = kernel_folder() / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}.json"
    wrong = _drop_wrong(modules, kernels)
    missing = missing | wrong
    known = None
    if not is_remeasured and not wrong:
        known = read_kept(path, lambda data: _as_plan(data, facts, kernels), "it is of another model or machine")
    if known is not None and (is_quick or not (is_busy(known.others_share) and is_quiet())):
        return replace(known, missing=missing)
    if is_quick:
        times = measure(modules, kernels, QUICK_ROWS, QUICK_BYTES)
        return KernelPlan(choose(times), times, missing)
    work = OtherWork()
    times = measure(modules, kernels)
    plan = KernelPlan(choose(times), times, missing, work.share())
    kept = {"choices": plan.choices, "times_ms": times, "others_share": plan.others_share}
    write_kept(path, {"facts": facts, **kept})
    return plan


@torch.no_grad()
def measure(
    modules: Sequence[nn.Linear],
    kernels: Mapping[str, Kernel],
    numbers: Sequence[int] = NUM_ROWS,
    most_bytes: int = MOST_BYTES,
) -> dict[str, dict[int, float]]:
    """Milliseconds by kernel and number of rows of one product with every layer, the best of paired rounds."""
    modules = _first(modules, most_bytes)
    packed = {name: [kernel.pack(m.weight.detach()) for m in modules] for name, kernel in kernels.items()}
    times = {name: dict.fromkeys(numbers, float("inf")) for name in (PLAIN, *kernels)}
    own = torch.Generator("cpu").manual_seed(0)  # `speed_up` measures within a call whose samples are to be repeated.
    for count in numbers:
        inputs = {
            module.in_features: torch.randn(
                count, module.in_features, generator=own, dtype=module.weight.dtype, device="cpu"
            )
            for module in modules
        }
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
        best = min(times_ms, key=lambda name: times_ms[name].get(count, math.inf))
        is_clear = count in times_ms[best] and times_ms[best][count] < CLEAR_GAIN * times_ms[favourite][count]
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
    generator = torch.Generator("cpu").manual_seed(0)
    for module in {(m.weight.shape, m.bias is None): m for m in modules}.values():
        dtype = module.weight.dtype
        inputs = torch.randn(5, module.in_features, generator=generator, dtype=torch.float32, device="cpu").to(dtype)
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
    """The conditions that a measurement holds for, as JSON has them."""
    return {
        "format": FORMAT,
        "shapes": hashlib.sha256(str([tuple(m.weight.shape) for m in modules]).encode()).hexdigest(),
        "dtype": str(modules[0].weight.dtype),
        "threads": torch.get_num_threads(),
        "processor": hashlib.sha256(processor().encode()).hexdigest(),
        "torch": torch.__version__,
        "kernels": sorted(kernels),
    }


def _as_plan(data: Any, facts: dict[str, Any], kernels: Mapping[str, Kernel]) -> KernelPlan | None:
    """A kept plan; None if it is of other facts or kernels."""
    choices = {int(count): str(name) for count, name in data["choices"].items()}
    times = {str(name): {int(n): float(t) for n, t in row.items()} for name, row in data["times_ms"].items()}
    is_known = set(choices) == set(NUM_ROWS) and set(choices.values()) <= {PLAIN, *kernels}
    plan = KernelPlan(choices, times, others_share=data["others_share"])
    return plan if data["facts"] == facts and is_known else None


def kernel_folder() -> Path:
    """Where plans and compiled kernels are kept."""
    return cache_folder() / "optimize"
