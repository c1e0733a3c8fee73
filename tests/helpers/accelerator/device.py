"""A pretended accelerator: real values on machines without a device, and a count of every wait and kernel launch.

PyTorch lets Python stand in for a device (`torch.utils.backend_registration`, the PrivateUse1 key). Tensors here report
the device `pretend:0` and keep their values on the CPU, so code that branches on `device.type != "cpu"` takes its
accelerator path and computes the right numbers. As on a real device:

- an operation over tensors of different devices raises (0-dimensional CPU tensors are allowed);
- a value read on the host (`item`, `tolist`, `bool`, `.cpu()`, `nonzero`, boolean masks) waits: counted in `reads`;
- a copy from ordinary host memory (`torch.tensor(..., device=)`, `.to(device)`, list indices) waits too: PyTorch
  synchronises the stream after it: counted in `uploads`. From pinned memory (`pin_memory()`, `non_blocking=True`) it
  does not, which is counted in `pinned`;
- `launches` counts operations on the device that are not mere views: each costs some 5 to 10 microseconds of host time
  in eager mode.

Counts are by the innermost line of the watched package, `file:line`. Not simulated: speed, the device's own rounding,
memory, streams, graph capture. Device names need an index ("pretend:0").

    with PretendAccelerator("treespec") as device:
        to_device(model)
        out = model.generate(ids.to(DEVICE), ...)
    print(device.reads, device.uploads, device.launches)
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from typing import Any

import torch
from helpers.accelerator.nested import mapped, tensors_in
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from treespec.sampling import LEAST_UNIFORM

DEVICE = torch.device("privateuseone", 0)  # "pretend" once that is registered.
aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten.is_nonzero.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
}  # fmt: skip
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
NO_KERNEL = {
    aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default,
    aten.detach.default,
}  # fmt: skip
_active: list[PretendAccelerator] = []


@cache
def register() -> None:
    """Register the device; where there is a GPU, its memory cannot be pinned from then on."""
    _setup_privateuseone_for_python_backend("pretend")
    backend: Any = torch.get_device_module("pretend")
    backend.get_rng_state = lambda device=None: torch.get_rng_state()  # `torch.random.fork_rng` calls both.
    backend.set_rng_state = lambda state, device=None: torch.set_rng_state(state)


class DeviceTensor(torch.Tensor):
    """A tensor that reports `DEVICE` and keeps its values in `inner`, on the CPU."""

    inner: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=DEVICE,
        )  # fmt: skip
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: a tensor of the pretended device left its `with` block")

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"DeviceTensor({self.inner!r})"

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert a tensor on {DEVICE} to numpy: use Tensor.cpu() first")


class PretendAccelerator(TorchDispatchMode):
    """The device, inside a `with` block; counts waits and launches by line of the files below `watched`."""

    def __init__(self, watched: str = "treespec") -> None:
        super().__init__()
        register()
        self._watched = f"/{watched}/"
        self.reads: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.pinned: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()

    def __enter__(self) -> PretendAccelerator:
        self._generator, self._literals = torch.Generator, _Literals()
        torch.Generator = _generator_class(torch.Generator)  # type: ignore[misc]
        _active.append(self)
        self._literals.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._literals.__exit__(*error)
        _active.pop()
        torch.Generator = self._generator  # type: ignore[misc]

    def clear(self) -> None:
        """Forget all counts."""
        for counter in (self.reads, self.uploads, self.pinned, self.launches):
            counter.clear()

    def count(self, counter: Counter[str]) -> None:
        """Add one at the innermost line of the watched package."""
        frame = sys._getframe(1)
        while frame is not None and self._watched not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None:
            counter["elsewhere"] += 1
        else:
            counter[f"{frame.f_code.co_filename.rsplit(self._watched, 1)[1]}:{frame.f_lineno}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [*tensors_in(args), *tensors_in(kwargs)]
        here = [x for x in tensors if isinstance(x, DeviceTensor)]
        host = [x for x in tensors if not isinstance(x, DeviceTensor)]
        wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if here and func in READS:
            self.count(self.reads)
        if here and func in INDEXING:
            index = [i for i in args[1] if isinstance(i, Tensor)]
            if any(i.dtype in (torch.bool, torch.uint8) for i in index):
                self.count(self.reads)
            if any(not isinstance(i, DeviceTensor) for i in index):
                self.count(self.uploads)
            host = [x for x in host if not any(x is i for i in index)]  # Host indices are copied to the device.
        if func is aten.copy_.default:
            is_here = isinstance(args[0], DeviceTensor)
            if is_here != isinstance(args[1], DeviceTensor) and (not is_here or args[1].dim()):
                self.count(self.uploads if is_here else self.reads)
        elif func is aten._to_copy.default and wanted is not None:
            is_here = wanted.type == DEVICE.type
            if is_here != bool(here):
                is_pinned = kwargs.get("non_blocking") and getattr(args[0], "is_pinned_here", False)
                self.count(self.pinned if is_pinned else self.uploads if is_here else self.reads)
        else:
            is_here = bool(here) if wanted is None else wanted.type == DEVICE.type
            if here and any(x.dim() for x in host):
                raise RuntimeError(f"{func}: expected all tensors on one device, got {DEVICE} and cpu")
        if is_here and not getattr(func, "is_view", False) and func not in NO_KERNEL:
            self.count(self.launches)
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        args, kwargs = mapped(_inner, args), mapped(_inner, kwargs)
        if func is aten.histc.default:  # Integers, which a CPU does not count.
            args = (args[0].double(), *args[1:])
        out = (_exponential_ if func is aten.exponential_.default else func)(*args, **kwargs)
        own = {id(x.inner): x for x in here}  # Tensors that are written in place stay the caller's own.
        return mapped(lambda x: _wrapped(x, own), out) if is_here else out


class _Literals(TorchFunctionMode):
    """Catches what never reaches the dispatcher: tensors made of Python numbers, lists as indices, `tolist`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, device = dict(kwargs or {}), _active[-1]
        first: Any = args[0] if args else None
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and not isinstance(first, DeviceTensor):
            wanted = kwargs.pop("device", None)
            out = func(*args, **kwargs)
            if wanted is None or torch.device(wanted).type != DEVICE.type:
                return out
            device.count(device.uploads)
            return DeviceTensor(out)
        if func is torch.Tensor.pin_memory:
            pinned: Any = first.clone()
            pinned.is_pinned_here = True
            return pinned
        if func is torch.Tensor.tolist and isinstance(first, DeviceTensor):
            device.count(device.reads)
            return first.inner.tolist()
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(first, DeviceTensor):
            key = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(k, list) for k in key):
                device.count(device.uploads)
                key = tuple(DeviceTensor(torch.tensor(k)) if isinstance(k, list) else k for k in key)
                args = (first, key, *args[2:])
        return func(*args, **kwargs)


def _exponential_(out: Tensor, lambd: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    """As `treespec.sampling` draws them on a CPU, so that both draw the same."""
    uniform = torch.rand(out.shape, dtype=torch.float64, generator=generator)
    return out.copy_(uniform.clamp_(min=LEAST_UNIFORM).log_().neg_().div_(lambd))


def _generator_class(real: type) -> type:
    class Generator(real):  # A generator "of the device" draws on the CPU.
        def __new__(cls, device: Any = "cpu") -> Any:
            return real.__new__(cls, "cpu")

    return Generator


def _inner(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, DeviceTensor) else x


def _wrapped(x: Tensor, own: dict[int, DeviceTensor]) -> DeviceTensor:
    mine = own.get(id(x))
    return mine if mine is not None and mine.shape == x.shape else DeviceTensor(x)


def to_device(module: nn.Module) -> nn.Module:
    """Move a module's parameters and buffers to `DEVICE`; inside the block."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter, DeviceTensor):
                part._parameters[name] = nn.Parameter(DeviceTensor(parameter.detach()), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, DeviceTensor):
                part._buffers[name] = DeviceTensor(buffer)
    return module
