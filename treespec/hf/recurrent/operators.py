"""The functions of transformers that compute convolutions and recurrences, and what replaces them in a tree pass.

All modelling files write their own layers, but compute these by functions of a few names. A layer is known where its
code calls such functions and gets at its states by a cache's methods alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

from torch import nn
from transformers import Cache

from treespec.errors import UnsupportedModelError
from treespec.hf.introspect import ModelFacts
from treespec.hf.recurrent.convolution import tree_convolution
from treespec.hf.recurrent.delta_rule import tree_delta_rule
from treespec.hf.recurrent.layers import StateLayer, TreePass
from treespec.hf.recurrent.selective_scan import tree_selective_scan
from treespec.hf.recurrent.ssd import tree_ssd
from treespec.hf.thread_patches import replaced

_CONVOLUTION = "causal_conv1d_fn"
_RECURRENCES: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": tree_delta_rule,
    "chunk_kimi_delta_attention": tree_delta_rule,
    "mamba2_chunk_scan": tree_ssd,
    "mamba_selective_scan": tree_selective_scan,
}
OPERATORS = {_CONVOLUTION: tree_convolution} | _RECURRENCES
_WRITES = {"update_conv_state", "update_recurrent_state"}


def modelling_files(facts: ModelFacts, states: Cache) -> list[ModuleType]:
    """The files whose functions the layers with states of `states` call.

    Raises `UnsupportedModelError`: such a layer is computed in a way that is not known.
    """
    known: set[int] = set()
    files: dict[str, ModuleType] = {}
    for module in facts.modules.values():
        names, file = calls(type(module))
        if names.isdisjoint(_WRITES):
            continue
        if not _is_known(names):
            raise UnsupportedModelError(
                f"{facts.name}: the recurrence of {type(module).__name__} has no form for trees"
            )
        known.add(getattr(module, "layer_idx", -1))
        files[file] = sys.modules[file]
    missing = {number for number, layer in enumerate(states.layers) if isinstance(layer, StateLayer)} - known
    if missing:
        raise UnsupportedModelError(f"{facts.name}: what keeps the states of layers {sorted(missing)} is not known")
    return list(files.values())


@contextmanager
def running(files: Sequence[ModuleType], layers: Sequence[StateLayer], tree_pass: TreePass) -> Iterator[None]:
    """Inside this thread's passes score nodes, whichever model of these files runs them."""
    with ExitStack() as stack:
        for file in files:
            for name, operator in OPERATORS.items():
                if hasattr(file, name):
                    stack.enter_context(replaced(file, name, partial(operator, tree_pass)))
        for layer in layers:
            layer.begin(tree_pass)
            stack.callback(layer.end)
        yield


def _is_known(names: frozenset[str]) -> bool:
    is_recurrent = "update_recurrent_state" in names
    return {"update_conv_state", _CONVOLUTION} <= names and is_recurrent == bool(names & set(_RECURRENCES))


@cache
def calls(kind: type[nn.Module]) -> tuple[frozenset[str], str]:
    """The names that the forward of a kind of module uses, without its decorators', and the module it is in."""
    forward: Any = inspect.unwrap(kind.forward)
    code = getattr(forward, "__code__", None)
    return frozenset(code.co_names if code else ()), forward.__module__
