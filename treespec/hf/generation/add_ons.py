"""What decoding does not know, by the option that asks for it: each part is loaded when it is used."""

from collections.abc import Callable
from typing import Any

from treespec.registry import Registry

ADD_ONS: Registry[Callable[..., Any]] = Registry(
    "add-on",
    {
        "constraints": "treespec.hf.generation.grammar_drafts:under_constraints",
        "compile": "treespec.hf.models.compiled_target:CompiledTarget.of",
        "trace": "treespec.lab.trace.about:as_watcher",
    },
)
"""By the option of `TreeSpeculation`, what turns its value into what the call uses; what drafts under constraints."""


def add_on(name: str, value: Any) -> Any:
    """What the option stands for; None stays None, and nothing is loaded."""
    return None if value is None else ADD_ONS[name](value)
