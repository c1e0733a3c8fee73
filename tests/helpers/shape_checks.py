"""Shapes in treespec's signatures are checked while the tests run.

jaxtyping's own import hook wraps every function of a package, which made tests of rules take 1.7 times as long; this
one wraps those only whose signature has a shape, and checks nothing else in it. Checks of all calls were half of the
time of tests that decode: a function's first calls in a test are checked, of later ones a part. Other types are
pyright's: where a test passes a wrong one on purpose, treespec's own error must come out.
"""

import ast
import functools
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

SHAPE = re.compile(r"\b(?:Int|UInt8|Float|Bool|Shaped|Num|Real)\[[\w.]+, ['\"]")
"""A type with a shape, of a tensor or of an array."""
ALL_OF_FIRST, ONE_IN = 2, 23
"""How many calls of a function are checked in any case, and one of how many later ones: a prime, so that calls which
take turns are all checked."""
num_calls = Counter[Callable]()
"""By function, since the test began."""


def install(packages: tuple[str, ...]) -> None:
    """Check the shapes of these packages, or modules: to be called before their first import."""
    sys.meta_path.insert(0, _Finder(packages))


class _Finder(MetaPathFinder):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, fullname, path=None, target=None):
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self._packages):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Never from a cached file, and never written to one."""
        tree = ast.parse(self.get_data(self.path), self.path)
        _Decorator().visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_with_shapes_checked"] = with_shapes_checked
        super().exec_module(module)


class _Decorator(ast.NodeTransformer):
    """Decorates the functions of a module and of its classes; one inside a function would be wrapped at every call."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.decorator_list.append(ast.copy_location(ast.Name("_with_shapes_checked", ast.Load()), node))
        return node


def with_shapes_checked(function: Callable) -> Callable:
    """The function, with the shapes in its signature checked; itself if there are none."""
    shapes = {}
    for name, hint in function.__annotations__.items():
        if isinstance(hint, str) and SHAPE.search(hint):  # From `from __future__ import annotations`.
            hint = eval(hint, function.__globals__)
        if "jaxtyping" in repr(hint):
            shapes[name] = hint
    if not shapes:
        return function
    function.__annotations__ = shapes
    checked: Callable = jaxtyped(typechecker=beartype)(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        num_calls[function] = number = num_calls[function] + 1
        if number > ALL_OF_FIRST and number % ONE_IN:
            return function(*args, **kwargs)
        try:
            return checked(*args, **kwargs)
        except TypeCheckError as error:
            if inspect.isgeneratorfunction(function) or getattr(error, "is_final", False):
                raise
            from treespec.errors import TreespecError  # Not above: importing treespec comes after `install`.

            error.is_final = True  # pyright: ignore[reportAttributeAccessIssue]
            try:
                function(*args, **kwargs)
            except TreespecError as own:
                raise own from None
            except Exception:  # A wrong shape fails in any way.
                raise error from None
            raise

    return call
