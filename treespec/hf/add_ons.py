"""How add-ons come into a call: by name, loaded when they are needed; and `AddOn`, what they may change of it."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import LogitsProcessor

from treespec.engine.observer import Observer
from treespec.protocols import CausalScorer, Drafter
from treespec.registry import Registry

ADD_ONS: Registry[Callable[..., Any]] = Registry(
    "add-on",
    {
        "compile": "treespec.hf.models.compiled_target:CompiledTarget.of",
        "constraints": "treespec.grammars.call:Constraints",
        "offloaded to": "treespec.devices.weights:offloaded_to",
        "own states": "treespec.hf.recurrent.own_states:own_states",
        "ranks": "treespec.devices.ranks:ranks_of",
        "state scorer": "treespec.hf.recurrent.scorer:StateScorer",
        "trace": "treespec.lab.trace.about:as_watcher",
        "whole weight": "treespec.devices.weights:whole_weight",
    },
)
"""What the core does not import, by what it is needed for."""


class AddOn(Observer):
    """An observer that also changes how its call is run, and nothing of what the call returns; override what it needs.

    The parts are asked before the call begins.
    """

    def for_target(self, scorer: CausalScorer) -> CausalScorer:
        """What makes the target's passes."""
        return scorer

    def for_draft(self, drafter: Drafter) -> Drafter:
        """What drafts."""
        return drafter

    def for_paths(self, processors: Sequence[LogitsProcessor]) -> Sequence[LogitsProcessor]:
        """What processes the logits along paths."""
        return processors
