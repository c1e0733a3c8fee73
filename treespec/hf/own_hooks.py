"""The caller's own forward hooks and modules in a model: they see the passes of trees in place of plain decoding's."""

import inspect
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any
from weakref import WeakMethod, ref

from torch import nn

HARMLESS = frozenset(
    {
        *("accelerate", "peft", "torch", "transformers", "treespec"),
        # Quantised layers
        *("aqlm", "auto_gptq", "auto_round", "awq", "bitsandbytes", "compressed_tensors", "eetq", "fbgemm_gpu"),
        *("fp_quant", "gptqmodel", "hqq", "optimum", "quark", "spqr_quant", "torchao", "vptq"),
        # Kernels
        *("apex", "causal_conv1d", "deepspeed", "fla", "flash_attn", "liger_kernel", "mamba_ssm", "xformers"),
    }
)
"""Packages whose hooks and modules treat all tokens of a pass alike."""
MARK = "serves_trees"
"""A caller's hook, or class of modules, that has this attribute, and it is true, is known to be harmless too."""


def own_hooks(modules: Mapping[str, nn.Module]) -> dict[tuple[str, Hashable], str]:
    """A model's hooks that are of no package known to be harmless: module and a reference to the hook; both in words.

    Those that were registered for all modules count too, and so do accelerate's with a class of the caller's and a
    `forward` that stands on a module in place of its class's.
    """
    shared: Any = nn.modules.module
    tables = shared._global_forward_pre_hooks, shared._global_forward_hooks
    hooks = [("all modules", hook) for table in tables for hook in list(table.values())]
    for name, module in modules.items():
        known = vars(module)
        replaced = [hook for hook in (known.get("_hf_hook"), known.get("forward")) if hook is not None]
        found = [*module._forward_pre_hooks.values(), *module._forward_hooks.values(), *replaced]
        hooks += [(name or type(module).__name__, hook) for hook in found]
    return {(where, _reference(hook)): f"{_name(hook)} on {where}" for where, hook in hooks if not _is_harmless(hook)}


def own_modules(modules: Mapping[str, nn.Module]) -> dict[tuple[str, Hashable], str]:
    """Modules whose class is neither of the model's own package nor of one known to be harmless, as `own_hooks`.

    Libraries of steering vectors put such a module around a layer.
    """
    package = _package(type(modules[""])) if "" in modules else ""
    kinds = {type(module) for module in modules.values()}
    own = {kind for kind in kinds if not _is_harmless(kind) and _package(kind) != package}
    found = {name: type(module) for name, module in modules.items() if type(module) in own}
    return {(name, ref(kind)): f"{kind.__name__} at {name}" for name, kind in found.items()}


def _is_harmless(hook: Any) -> bool:
    function = _function(hook)
    if getattr(hook, MARK, False) or getattr(function, MARK, False):
        return True
    return _package(function) in HARMLESS


def _package(found: Any) -> str:
    """The top-level package that a function, a class or an object's class comes from."""
    return (getattr(found, "__module__", None) or type(found).__module__).partition(".")[0]


def _name(hook: Any) -> str:
    function = _function(hook)
    return getattr(function, "__name__", type(function).__name__)


def _function(hook: Any) -> Any:
    while isinstance(hook, partial):
        hook = hook.func
    return hook


def _reference(hook: Any) -> Hashable:
    """Equal for one hook, also when it is registered again; keeps no hook alive."""
    try:
        reference = WeakMethod(hook) if inspect.ismethod(hook) else ref(hook)
        hash(reference)
    except TypeError:  # Neither weakly referenced nor hashed.
        return id(hook)
    return reference
