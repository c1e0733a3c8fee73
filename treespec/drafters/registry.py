"""Drafters by name."""

from collections.abc import Callable

from treespec.protocols import Drafter
from treespec.registry import Registry

DRAFTERS: Registry[Callable[[], Drafter]] = Registry(
    "drafter",
    {
        "recycling": "treespec.drafters.lookup.recycling:TokenRecycling",
        "suffix": "treespec.drafters.lookup.suffix:SuffixLookup",
    },
)
"""What makes the drafters that any model can have, by the name that commands and setting files use. One of yours is
added by `DRAFTERS.register("mine", "my_package.my_module:MyDrafter")`, a class with defaults for all its arguments."""
