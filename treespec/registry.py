"""Loading by name at the first use: parts, by the names in configs and commands, and public names of packages."""

import ast
import inspect
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, Generic, TypeVar

from treespec.errors import ConfigError

Part = TypeVar("Part")


class Registry(Mapping[str, Part], Generic[Part]):
    """Parts of one kind by name: the part itself, or its import path "module:attribute", loaded at the first look.

    Names are listed without importing anything; looking at the parts (`items`, `values`) imports all of them. `made`
    turns what is registered, or what its import path leads to, into the part. `taken` has the names that are in use, by
    what uses them: its own, and those that would mean something else; registries with one `taken` share no name.
    """

    def __init__(
        self, kind: str, parts: Mapping[str, Part | str], made: Callable[[Any], Part] = lambda found: found
    ) -> None:
        self.kind, self._made, self._parts = kind, made, dict(parts)
        self.taken: dict[str, Container[str]] = {kind: self._parts}

    def register(self, name: str, part: Part | str) -> None:
        """Add a part, or its import path. Raises `ConfigError`: its name is taken, or it is of another kind."""
        for kind in (kind for kind, names in self.taken.items() if name in names):
            raise ConfigError(f"a {kind} called '{name}' is there already; choose another name")
        self._parts[name] = part if isinstance(part, str) else self._made(part)

    def forget(self, name: str) -> None:
        """Remove a part."""
        del self._parts[name]

    def __getitem__(self, name: str) -> Part:
        """Raises `KeyError`: no part has the name; `ConfigError`: its import path leads to none."""
        part = self._parts[name]
        if isinstance(part, str):
            module, _, attribute = part.partition(":")
            try:
                found = attrgetter(attribute)(import_module(module))
            except (ImportError, AttributeError, ValueError) as error:
                raise ConfigError(f"the {self.kind} '{name}' cannot be imported as '{part}': {error}") from error
            part = self._parts[name] = self._made(found)
        return part  # pyright: ignore[reportReturnType]

    def __contains__(self, name: object) -> bool:
        """Whether the name is registered; unlike `Mapping`'s, this does not load the part."""
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def lazy(package: str, modules: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` (PEP 562) and `__all__` of a package whose public names load at their first use.

    The names are stated once, where type checkers see them: `from module import name as name` in `if TYPE_CHECKING:`,
    with `as` because that makes an import public (PEP 484). Here these lines are read from the package's source.

    Args:
        package: its `__name__`.
        modules: "a b", those of its modules that load so too, besides the modules that the names come from.

    Raises `ImportError`: the package was installed without its source.
    """
    try:
        source = inspect.getsource(sys.modules[package])
    except OSError as error:
        raise ImportError(f"{package} reads its public names from its source: install its .py files too") from error
    conditions = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    typing = [inner for node in conditions if ast.unparse(node.test) == "TYPE_CHECKING" for inner in node.body]
    imports = [node for node in typing if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    inner = [home.removeprefix(f"{package}.") for home in homes.values() if home.startswith(f"{package}.")]
    below = {*modules.split(), *(name.partition(".")[0] for name in inner)}

    def load(name: str) -> Any:
        if name in homes and homes[name] != package:
            value = getattr(import_module(homes[name]), name)
        elif name in homes or name in below:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module '{package}' has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes, *below}), sorted(homes)
