"""Packed weights in huge pages: read once per pass, they would otherwise need a page-table entry every 4 KiB."""

import ctypes
import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

PAGE, CHUNK, LINE = 1 << 21, 1 << 25, 64
"""Bytes of a huge page, of what is asked for at once (most weights are smaller than a page), and of a cache line."""


class HugePages:
    """Memory for weights, freed once no weight of a chunk is in use; in usual pages where the system has no others."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._lock = threading.Lock()

    def copy(self, packed: Tensor) -> Tensor:
        """A contiguous tensor, copied."""
        with self._lock:
            size = -(-packed.nbytes // LINE) * LINE
            if size > len(self._free):
                self._free = _chunk(max(size, CHUNK))
            memory, self._free = self._free[: packed.nbytes], self._free[size:]
        return memory.view(packed.dtype).view(packed.shape).copy_(packed)


@torch.inference_mode(False)  # Weights of other modes are written to the rest of it.
def _chunk(size: int) -> Tensor:
    """Bytes from the start of a huge page on; untouched ones take no memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # Linux only.
        return torch.empty(size, dtype=torch.uint8, device="cpu")
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # A kernel without huge pages.
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % PAGE
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)
