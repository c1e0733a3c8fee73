"""Attributes of a module, a layer or a file, that are other ones for one thread: patches of a model that several call.

Torch's hooks would not do: a pass of another thread may come while one is being added or removed.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()
Module = nn.Module | ModuleType
_standing: WeakKeyDictionary[Module, dict[str, "_Standing"]] = WeakKeyDictionary()


class _Standing:
    """Stands in for an attribute, a function or a tensor that is indexed, while any thread has its own value for it."""

    def __init__(self, module: Module, name: str) -> None:
        self.own = vars(module).get(name)  # Such as accelerate's `forward`; buffers and methods are not there.
        self.shared = getattr(module, name)
        self.values: dict[int, Any] = {}

    def current(self) -> Any:
        return self.values.get(threading.get_ident(), self.shared)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.current()(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self.current()[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copies of the module are not patched."""
        return deepcopy(self.shared, memo)


def current(module: Module, name: str) -> Any:
    """The attribute as this thread sees it."""
    value = getattr(module, name)
    return value.current() if isinstance(value, _Standing) else value


@contextmanager
def replaced(module: Module, name: str, value: Any) -> Iterator[None]:
    """Inside this context this thread finds `value` as the attribute, and other threads what they found before.

    A context inside another may replace it again; the last thread to leave takes the patch away.
    """
    thread = threading.get_ident()
    with _lock:
        patches = _standing.setdefault(module, {})
        standing = patches.get(name)
        if standing is None:
            standing = patches[name] = _Standing(module, name)
            vars(module)[name] = standing
        outer = standing.values.get(thread)
        standing.values[thread] = value
    try:
        yield
    finally:
        with _lock:
            _leave(module, name, standing, outer)


def _leave(module: Module, name: str, standing: _Standing, outer: Any) -> None:
    if outer is not None:
        standing.values[threading.get_ident()] = outer
        return
    del standing.values[threading.get_ident()]
    if not standing.values:
        del _standing[module][name]
        if standing.own is None:
            del vars(module)[name]
        else:
            vars(module)[name] = standing.own
