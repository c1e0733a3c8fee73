"""Options whose parts the core does not know: each is loaded when it is given."""

from collections.abc import Callable
from typing import Any

from treespec.registry import Registry

ADD_ONS: Registry[Callable[[Any], Any]] = Registry(
    "add-on",
    {
        "trace": "treespec.lab.trace.about:as_watcher",
    },
)
"""By the option of `TreeSpeculation`, what turns its value into what the call uses."""


def add_on(name: str, value: Any) -> Any:
    """What the option stands for; None stays None, and nothing is loaded."""
    return None if value is None else ADD_ONS[name](value)
