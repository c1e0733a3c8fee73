"""Helpers of `tests/cuda`: the device, models on it, and counts of waits.

`TREESPEC_CUDA_AS=cpu` (or `pretend:0`) runs on another device what needs no GPU, to try a test out.
"""

import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from helpers.tiny import noisy_copy, tiny_llama
from torch import Tensor

NAME = os.environ.get("TREESPEC_CUDA_AS", "cuda:0")
CPU = torch.device("cpu")
IS_GPU = NAME.startswith("cuda")
if NAME.startswith("pretend"):
    from helpers.accelerator.device import PretendAccelerator

    PretendAccelerator().__enter__()
DEVICE = torch.device(NAME)


def placed(module: Any) -> Any:
    """The module on the device."""
    if DEVICE.type != "pretend":
        return module.to(DEVICE)
    from helpers.accelerator.device import to_device

    return to_device(module)


def pair() -> tuple[Any, Any]:
    """A tiny target and its draft on the device."""
    target = tiny_llama()
    draft = noisy_copy(target)
    return placed(target), placed(draft)


def on(device: torch.device, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in inputs.items()}


class Syncs:
    """How often the host waits for a GPU, by the innermost line of treespec: `PretendAccelerator`'s counts."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.uploads = self.pinned = self.launches = Counter[str]()

    def clear(self) -> None:
        self.reads.clear()

    def _count(self, message: Any, *args: Any) -> None:
        if "synchronizing CUDA operation" not in str(message):
            return
        frame = sys._getframe(1)
        while frame is not None and "/treespec/" not in frame.f_code.co_filename:
            frame = frame.f_back
        name = "elsewhere" if frame is None else frame.f_code.co_filename.rsplit("/treespec/", 1)[1]
        self.reads[name if frame is None else f"{name}:{frame.f_lineno}"] += 1


@contextmanager
def counted_syncs() -> Iterator[Syncs]:
    found = Syncs()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = found._count
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
