"""Drafters by name."""

from collections.abc import Callable
from typing import Any

from treespec.errors import ConfigError
from treespec.protocols import Drafter
from treespec.registry import Registry


def _checked(make: Any) -> Any:
    """A class or a function. Raises `ConfigError`: anything else."""
    if not callable(make):
        raise ConfigError(f"a drafter is registered by its class or a function that makes it, got {make!r:.60}")
    return make


DRAFTERS: Registry[Callable[[], Drafter]] = Registry(
    "drafter",
    {
        "recycling": "treespec.drafters.lookup.recycling:TokenRecycling",
        "suffix": "treespec.drafters.lookup.suffix:SuffixLookup",
    },
    made=_checked,
)
"""Factories of drafters for any model, by the name that commands, configurations and setting files use. One of
yours is added by `DRAFTERS.register("mine", "my_package.my_module:MyDrafter")`, a class with defaults for all its
arguments."""
DRAFTERS.taken |= {
    "method of configurations": ("draft_model", "ngram", "ngram_gpu"),
    "drafter that ships with treespec": ("head", "warm"),
    "drafter of vLLM's configurations": ("merge",),
    "kind of head": ("dflash", "dspark", "dflash2", "eagle", "eagle3", "peagle"),
    "format of drafters": ("assistant", "mtp", "medusa"),
}
"""Names in use, by their meaning; drafters cannot be registered by them. The last two sets are replaced by the
registries of kinds and formats when these are loaded."""


def maker(name: str) -> Callable[[], Drafter]:
    """The factory of a drafter by its name or import path "module:attribute". Raises `ConfigError`: there is none."""
    return DRAFTERS[name] if name in DRAFTERS else Registry(DRAFTERS.kind, {name: name}, _checked)[name]
