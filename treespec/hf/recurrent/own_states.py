"""Models that keep their states elsewhere than in a transformers cache of the common kind, found by what they call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from transformers import Cache

from treespec.hf.introspect import ModelFacts
from treespec.hf.recurrent.layers import StateLayer, TreePass
from treespec.hf.recurrent.lightning import LightningStates
from treespec.hf.recurrent.operators import calls
from treespec.hf.recurrent.rg_lru import GatedUnitStates
from treespec.hf.recurrent.rwkv import WeightedKeyValueStates


class OwnStates(Protocol):
    """How the modules of a model find their states in the layers of a cache.

    Attributes:
        calls: the names that the modules use.
        is_continued: whether the model's own passes can continue from such a cache.
        reads_padding: whether padding before a text changes its states, as it does in the model's own passes.
    """

    calls: frozenset[str]
    is_continued: bool
    reads_padding: bool

    def cache(self) -> Cache:
        """An empty cache."""
        ...

    def running(self, layers: Sequence[StateLayer], tree_pass: TreePass | None) -> AbstractContextManager[None]:
        """Inside this thread's passes score nodes, or read a prompt (None), from and to these layers."""
        ...


KINDS: tuple[Any, ...] = (LightningStates, GatedUnitStates, WeightedKeyValueStates)


def own_states(facts: ModelFacts) -> OwnStates | None:
    """None: the model keeps its states in its cache."""
    for kind in KINDS:
        modules = [module for module in facts.modules.values() if kind.calls <= calls(type(module))[0]]
        if modules:
            return kind(facts, modules)
    return None
