"""Models that keep their states elsewhere than in a transformers cache of the common kind, found by what they call."""

from __future__ import annotations

from treespec.hf.introspect import ModelFacts
from treespec.hf.recurrent.layers import OwnStates
from treespec.hf.recurrent.lightning import LightningStates
from treespec.hf.recurrent.operators import calls
from treespec.hf.recurrent.rg_lru import GatedUnitStates
from treespec.hf.recurrent.rwkv import WeightedKeyValueStates

KINDS: tuple[type[OwnStates], ...] = (LightningStates, GatedUnitStates, WeightedKeyValueStates)


def own_states(facts: ModelFacts) -> OwnStates | None:
    """None: the model keeps its states in its cache."""
    for kind in KINDS:
        modules = [module for module in facts.modules.values() if kind.calls <= calls(type(module))[0]]
        if modules:
            return kind(facts, modules)
    return None
