"""Existing tests on another device: `TREESPEC_TEST_DEVICE=cuda:0 pytest tests/hf`; "cpu", "pretend:0" to try it out.

Tests are written for the CPU. With the variable set

- models and heads that a test makes or loads are moved to the device when `eval()` is called; what treespec loads is
  left to treespec;
- a test's call of a model or of `generate` gets its inputs moved there and its results moved back;
- an operation in a test's own code (its checks, drafters, processors) may mix the device with the CPU.

Calls from treespec's code are left as they are: there a mixture of devices is a failure.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from helpers.accelerator.nested import mapped, tensors_in
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ROOT = Path(__file__).parents[2]
WRITTEN_FOR_THE_CPU, LIBRARY = (f"{ROOT}/tests/", f"{ROOT}/benchmarks/"), f"{ROOT}/treespec/"
HANDED_ON = f"{ROOT}/treespec/hf/generation/speculation.py", "generate"
"""`treespec.generate`, which gives the caller's inputs to the model's own."""
ON_THE_HOST = (torch.Tensor.numpy, torch.Tensor.__array__)


def install(name: str) -> None:
    """Run what follows in this process on the device of this name; treespec is imported."""
    move = to_real_device
    if name.startswith("pretend"):
        from helpers.accelerator.device import PretendAccelerator, to_device

        PretendAccelerator().__enter__()
        move = lambda module, _: to_device(module)  # noqa: E731
    device = torch.device(name)
    torch.backends.cudnn.allow_tf32 = False  # Greedy texts are compared: convolutions in full float32.
    torch.testing.assert_close = functools.partial(torch.testing.assert_close, check_device=False)
    _patch_models(device, move)
    MixedInTests(device).__enter__()


def is_called_by_a_test() -> bool:
    """Whether the innermost frame that is a test's or treespec's is a test's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(LIBRARY) and (name, frame.f_code.co_name) != HANDED_ON:
            return False
        if name.startswith(WRITTEN_FOR_THE_CPU) and name != __file__:
            return True
        frame = frame.f_back
    return False


def _patch_models(device: torch.device, move: Callable[[nn.Module, torch.device], nn.Module]) -> None:
    from transformers import PreTrainedModel
    from transformers.generation.utils import GenerationMixin

    from treespec.heads.modules.base import DraftHead
    from treespec.hf.models import make_scorer  # noqa: F401  Which imports all kinds of scorers.
    from treespec.hf.models.base import ModelScorer
    from treespec.hf.recurrent import scorer as _scorer  # noqa: F401  Imported at a recurrent model's first call.

    def evaluate(module: Any) -> Any:
        nn.Module.eval(module)
        found = {tensor.device.type for tensor in _kept_by(module)}
        is_placed = hasattr(module, "hf_device_map") or "meta" in found or found <= {device.type}
        if not is_placed and is_called_by_a_test():
            move(module, device)
            assert {tensor.device.type for tensor in _kept_by(module)} == {device.type}
        return module

    PreTrainedModel.eval = DraftHead.eval = evaluate
    PreTrainedModel.__call__ = _with_moved_inputs(nn.Module.__call__)  # type: ignore[method-assign]
    GenerationMixin.generate = _with_moved_inputs(GenerationMixin.generate)  # type: ignore[method-assign]
    for scorer in _subclasses(ModelScorer):
        if "prefill" in vars(scorer):
            scorer.prefill = _with_moved_prompt(scorer.prefill)


def to_real_device(module: nn.Module, device: torch.device) -> nn.Module:
    """`module.to(device)`, which sets the data of a parameter on the CPU: an operation over two devices."""
    with torch._C.DisableTorchFunction():
        return nn.Module.to(module, device)


def _kept_by(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, without `named_modules`, whose calls a test counts."""
    for part in (*module._parameters.values(), *module._buffers.values()):
        if part is not None:
            yield part
    for child in module.children():
        yield from _kept_by(child)


def _subclasses(kind: type) -> Iterator[Any]:
    yield kind
    for below in kind.__subclasses__():
        yield from _subclasses(below)


def _with_moved_prompt(prefill: Callable[..., Any]) -> Callable[..., Any]:
    """Prompts go where the scorer is; trees are on the host in any case."""

    @functools.wraps(prefill)
    def moved(scorer: Any, *args: Any, **kwargs: Any) -> Any:
        if is_called_by_a_test():
            args, kwargs = mapped(lambda x: x.to(scorer.device), (args, kwargs))
        return prefill(scorer, *args, **kwargs)

    return moved


def _with_moved_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """Inputs go where the model's first weight is; results come back if one was elsewhere."""

    @functools.wraps(call)
    def moved(model: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not is_called_by_a_test():
            return call(model, *args, **kwargs)
        device = next(_kept_by(model)).device
        if all(tensor.device == device for tensor in tensors_in((args, kwargs))):
            return call(model, *args, **kwargs)
        args, kwargs = mapped(lambda x: x.to(device), (args, kwargs))
        return mapped(lambda x: x.cpu(), call(model, *args, **kwargs))

    return moved


class MixedInTests(TorchFunctionMode):
    """Operands of a test's own operations are brought to the device, those of one in place to the tensor written to."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._type = device.type

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        devices = {x.device for x in tensors_in((args, kwargs)) if x.dim() or x.device.type != "cpu"}
        there = [device for device in devices if device.type == self._type]
        if not there or (len(devices) == 1 and func not in ON_THE_HOST) or not is_called_by_a_test():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if func in ON_THE_HOST:
            goal = torch.device("cpu")
        elif name in ("__getitem__", "__setitem__") or name.endswith("_") or name.startswith("__i"):
            goal = args[0].device
        else:
            goal = there[0]
        return func(*mapped(lambda x: x.to(goal), args), **mapped(lambda x: x.to(goal), kwargs))
