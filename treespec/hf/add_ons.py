"""How add-ons come into a call: by name, loaded when they are needed; and `AddOn`, what they may change of it.

`AddOn` is for what acts before and after the passes of one call, as constraints do. Why no hook surrounds a pass:
docs/architecture.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import LogitsProcessor

from treespec.engine.observer import Observer
from treespec.protocols import Drafter
from treespec.registry import Registry

ADD_ONS: Registry[Callable[..., Any]] = Registry(
    "add-on",
    {
        "constraints": "treespec.grammars.call:Constraints",
        "offloaded to": "treespec.devices.weights:offloaded_to",
        "ranks": "treespec.devices.ranks:ranks_of",
        "trace": "treespec.lab.trace.about:as_watcher",
        "whole weight": "treespec.devices.weights:whole_weight",
    },
)
"""Parts that the core does not import, by their purpose."""

RARE: Registry[Callable[..., Any]] = Registry(
    "part",
    {
        "compile": "treespec.hf.models.compiled_target:CompiledTarget.of",
        "own states": "treespec.hf.recurrent.scorer:own_states",
        "state scorer": "treespec.hf.recurrent.scorer:StateScorer",
    },
)
"""Parts of the core that stand above what names them, and that most models and calls do without."""


class AddOn(Observer):
    """An observer that also changes how its call is run, and nothing of what the call returns; override what it needs.

    The parts are asked before the call begins.
    """

    def for_draft(self, drafter: Drafter) -> Drafter:
        """The drafter that replaces `drafter` in the call; by default the same."""
        return drafter

    def for_paths(self, processors: Sequence[LogitsProcessor]) -> Sequence[LogitsProcessor]:
        """The logits processors that replace `processors` along paths; by default the same."""
        return processors
