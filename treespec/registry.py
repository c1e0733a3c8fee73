"""Parts by the names that configs and commands use: what is registered by its import path loads when it is named."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, Generic, TypeVar

from treespec.errors import ConfigError

Part = TypeVar("Part")


class Registry(Mapping[str, Part], Generic[Part]):
    """Parts of one kind by name: the part itself, or its import path "module:attribute", loaded at the first look.

    Names are listed without importing anything; looking at the parts (`items`, `values`) imports all of them. `made`
    turns what an import path leads to into the part.
    """

    def __init__(
        self, kind: str, parts: Mapping[str, Part | str], made: Callable[[Any], Part] = lambda found: found
    ) -> None:
        self.kind = kind
        self._made = made
        self._parts: dict[str, Part | str] = dict(parts)

    def register(self, name: str, part: Part | str) -> None:
        """Add a part, or its import path. Raises `ConfigError`: another one has the name."""
        if name in self._parts:
            raise ConfigError(f"a {self.kind} called '{name}' is there already; choose another name")
        self._parts[name] = part

    def forget(self, name: str) -> None:
        """Remove a part."""
        del self._parts[name]

    def __getitem__(self, name: str) -> Part:
        """Raises `KeyError`: no part has the name."""
        part = self._parts[name]
        if isinstance(part, str):
            module, _, attribute = part.partition(":")
            part = self._parts[name] = self._made(attrgetter(attribute)(import_module(module)))
        return part  # pyright: ignore[reportReturnType]

    def __contains__(self, name: object) -> bool:
        """Whether the name is registered; unlike `Mapping`'s, this does not load the part."""
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
