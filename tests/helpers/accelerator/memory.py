"""The bytes of all tensors on the pretended accelerator."""

import weakref
from typing import Any

from helpers.accelerator.device import DeviceTensor, PretendAccelerator
from torch import Tensor


class Memory(PretendAccelerator):
    """The device, with its memory: what operations need inside of them, such as copies to another dtype, is not seen.

    Attributes:
        num_bytes: of the tensors alive that operations have made.
        peak: the most of them at once; to be set by who measures.
    """

    num_bytes = peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(tensor, DeviceTensor):
                self._keep(tensor.inner)
        return out

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if not hasattr(storage, "is_counted"):
            storage.is_counted = True  # type: ignore[attr-defined]
            weakref.finalize(storage, self._add, -storage.nbytes())
            self._add(storage.nbytes())

    def _add(self, count: int) -> None:
        self.num_bytes += count
        self.peak = max(self.peak, self.num_bytes)
