"""One copy between host and device for several tensors.

Trees live on the host, where reading a single number costs nothing; distributions, models and caches live on the
device. Every copy from the device makes the host wait, and every copy to it costs a launch, so what belongs together
travels together.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor
from torch.nn.functional import pad

WAITS: Counter[str] = Counter()
"""How often this process waited for a device, by its kind; traces read it."""
KERNEL_BYTES = 16
"""Where uploaded tensors begin, in multiples: CUDA's attention reads a mask by vectors of this many bytes."""


def upload(device: torch.device, *tensors: Shaped[Tensor, "..."]) -> list[Tensor]:
    """Tensors on `device`, those of the host by one copy from pinned memory, which the host does not wait for.

    The copies are views of one buffer; tensors that are on `device` already stay themselves.
    """
    away = [] if device.type == "cpu" else [tensor for tensor in tensors if tensor.device.type == "cpu"]
    packed = _pack(away, KERNEL_BYTES).pin_memory().to(device, non_blocking=True) if away else None
    copies = iter(() if packed is None else _unpack(packed, away, KERNEL_BYTES))
    is_away = [device.type != "cpu" and tensor.device.type == "cpu" for tensor in tensors]
    return [next(copies) if flag else tensor.to(device) for flag, tensor in zip(is_away, tensors, strict=True)]


def download(*tensors: Shaped[Tensor, "..."]) -> list[Tensor]:
    """Tensors on the host by one copy, which waits for the device; themselves where they are on a CPU."""
    away = [tensor for tensor in tensors if tensor.device.type != "cpu"]
    WAITS.update({tensor.device.type for tensor in away})
    copies = iter(_unpack(_pack(away).cpu(), away) if away else [])
    return [next(copies) if tensor.device.type != "cpu" else tensor for tensor in tensors]


def _by_size(tensors: Sequence[Tensor]) -> list[int]:
    """The order in which every tensor is aligned to its own entries: those of large entries first."""
    return sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())


def _pack(tensors: Sequence[Tensor], multiple: int = 1) -> UInt8[Tensor, " num_bytes"]:
    """The bytes of all tensors, each beginning at a multiple of `multiple` bytes."""
    # `as_strided`, for tensors of one entry or none may have any stride, and bytes need one.
    whole = [tensors[i].contiguous() for i in _by_size(tensors)]
    parts = [tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in whole]
    parts = [pad(part, (0, -len(part) % multiple)) if len(part) % multiple else part for part in parts]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _unpack(packed: UInt8[Tensor, " num_bytes"], like: Sequence[Tensor], multiple: int = 1) -> list[Tensor]:
    """The tensors whose bytes were packed, as views."""
    order = _by_size(like)
    sizes = [like[i].numel() * like[i].element_size() for i in order]
    begins = accumulate((size + -size % multiple for size in sizes), initial=0)
    views = {
        i: packed[begin : begin + size].view(like[i].dtype).view(like[i].shape)
        for i, size, begin in zip(order, sizes, begins, strict=False)
    }
    return [views[i] for i in range(len(like))]
