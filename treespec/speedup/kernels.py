"""The kernels of `treespec.optimize` for a model and its head, without a first answer that waits for them.

Nothing is measured for seconds: kept measurements are used, else a tenth of a second says which kernel is faster. Where
the kernels have to be compiled first, that happens in a thread while the first calls decode with PyTorch's own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import torch
from torch import nn

from treespec.cpu import optimize, restore
from treespec.cpu.kernel_plan import kernel_folder
from treespec.cpu.linear_kernels import PLAIN, FastForward, has_fast_linears
from treespec.cpu.native import NativeError, is_compiled, load_library
from treespec.errors import TreespecError

MEMORY = Path("/proc/meminfo")
MOST_MEMORY = 0.5
"""The share of the free memory that packed weights may take."""
KEPT = "those that treespec.optimize gave the model before"
COMPILER = "treespec compiles kernels"
"""The name of a thread."""
_own: WeakSet[nn.Module] = WeakSet()
"""The models whose kernels are from here."""


class Kernels:
    """Kernels for a target, and for heads in 8 bits, applied as soon as they are compiled.

    Attributes:
        state: what was done, or why nothing, for people.
    """

    def __init__(self, model: nn.Module, heads: Sequence[nn.Module]) -> None:
        self._model, self._heads = model, heads
        if model in _own:  # An earlier `speed_up` of the model.
            restore(model)
        # Kernels that a caller has chosen stay, such as those of 8-bit weights: they are another model.
        self._is_optimized = any(isinstance(vars(module).get("forward"), FastForward) for module in model.modules())
        self._compiling: threading.Thread | None = None
        self.state = "on the model's own device: PyTorch's"
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            return
        needed, free = sum(weight.nbytes for weight in model.parameters()), _free_memory()
        if free is None:
            self.state = "PyTorch's: how much memory is free for packed weights is known on Linux only, see optimize"
        elif needed > MOST_MEMORY * free:
            self.state = (
                f"PyTorch's: packed weights would take {needed / 1e9:.0f} of {free / 1e9:.0f} GB of free memory"
            )
        elif is_compiled(kernel_folder()):
            self._apply()
        else:
            self.state = "PyTorch's until faster ones are compiled, which happens meanwhile"
            self._compiling = _compiler()

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_compiling": None}

    def advance(self) -> bool:
        """Before a call: take the kernels if they have been compiled since the last one, and say so."""
        if self._compiling is None or self._compiling.is_alive():
            return False
        self._compiling = None
        self._apply()
        return True

    def restore(self) -> None:
        """Undo everything."""
        self._compiling = None
        _own.discard(self._model)
        for module in self._heads if self._is_optimized else (self._model, *self._heads):
            restore(module)
        self.state = KEPT if self._is_optimized else "PyTorch's"

    def _apply(self) -> None:
        try:
            plan = None if self._is_optimized else optimize(self._model, is_quick=True).plan
        except TreespecError as error:
            self.state = f"PyTorch's: {error}"
            return
        kinds = dict.fromkeys(plan.choices.values()) if plan else {}
        if list(kinds) == [PLAIN]:
            restore(self._model)  # The way through a plan takes small layers some per cent of their time.
            self.state = "PyTorch's, which are the fastest for its layers"
        elif plan:
            self.state = f"treespec's for CPUs ({', '.join(kinds)})"
            _own.add(self._model)
        else:
            self.state = KEPT
        for head in self._heads:
            if has_fast_linears(head):  # An earlier `speed_up` of it has packed its weights, or its owner.
                continue
            with suppress(TreespecError):  # Without a compiler it runs as it is.
                optimize(head, dtype=torch.int8 if next(head.parameters()).dtype == torch.float32 else None)


def _compiler() -> threading.Thread:
    """The thread that compiles the kernels: one, however many models wait for them."""
    running = [thread for thread in threading.enumerate() if thread.name == COMPILER]
    if running:
        return running[0]
    thread = threading.Thread(target=_compile, name=COMPILER, daemon=True)
    thread.start()
    return thread


def _compile() -> None:
    with suppress(NativeError):  # Those that need no compiler are taken then.
        load_library(kernel_folder(), is_background=True)


def _free_memory() -> int | None:
    """Bytes that can be had without swapping, those of file caches included; None: the system does not say."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY.read_text())
    except OSError:
        return None
    return None if found is None else 1024 * int(found[1])
