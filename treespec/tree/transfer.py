"""One copy between host and device for several tensors.

Trees live on the host, where reading a single number costs nothing; distributions, models and caches live on the
device. Every copy from the device makes the host wait, and every copy to it costs a launch, so what belongs together
travels together.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from jaxtyping import Shaped, UInt8
from torch import Tensor

WAITS: Counter[str] = Counter()
"""How often this process waited for a device, by its kind; traces read it."""


def upload(device: torch.device, *tensors: Shaped[Tensor, "..."]) -> list[Tensor]:
    """Tensors on `device`, those of the host by one copy from pinned memory, which the host does not wait for.

    The copies are views of one buffer; tensors that are on `device` already stay themselves.
    """
    away = [] if device.type == "cpu" else [tensor for tensor in tensors if tensor.device.type == "cpu"]
    copies = iter(_unpack(_pack(away).pin_memory().to(device, non_blocking=True), away) if away else [])
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


def _pack(tensors: Sequence[Tensor]) -> UInt8[Tensor, " num_bytes"]:
    """The bytes of all tensors."""
    # `as_strided`, for tensors of one entry or none may have any stride, and bytes need one.
    whole = [tensors[i].contiguous() for i in _by_size(tensors)]
    parts = [tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8) for tensor in whole]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _unpack(packed: UInt8[Tensor, " num_bytes"], like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors whose bytes were packed, as views."""
    order = _by_size(like)
    ends = accumulate((like[i].numel() * like[i].element_size() for i in order), initial=0)
    views = {
        i: packed[a:b].view(like[i].dtype).view(like[i].shape) for i, (a, b) in zip(order, pairwise(ends), strict=True)
    }
    return [views[i] for i in range(len(like))]
