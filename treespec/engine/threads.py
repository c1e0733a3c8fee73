"""How many threads PyTorch's operators use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread for what is done on single vectors over a vocabulary, on a CPU.

    They are just long enough for PyTorch to share them among threads, and so short that waking a thread takes longer
    than the work; telling PyTorch costs next to nothing.
    """
    num_threads = torch.get_num_threads()
    if device.type != "cpu" or num_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
