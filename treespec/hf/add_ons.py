"""What the core does not import, by what it is needed for: each part of an add-on is loaded when it is used."""

from collections.abc import Callable
from typing import Any

from treespec.registry import Registry

ADD_ONS: Registry[Callable[..., Any]] = Registry(
    "add-on",
    {
        "compile": "treespec.hf.models.compiled_target:CompiledTarget.of",
        "constraints": "treespec.grammars.call:Constraints",
        "offloaded to": "treespec.devices.weights:offloaded_to",
        "ranks": "treespec.devices.ranks:ranks_of",
        "trace": "treespec.lab.trace.about:as_watcher",
        "whole weight": "treespec.devices.weights:whole_weight",
    },
)


def add_on(name: str, value: Any) -> Any:
    """What an option of `TreeSpeculation` stands for; None stays None, and nothing is loaded."""
    return None if value is None else ADD_ONS[name](value)
