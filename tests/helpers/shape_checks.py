"""Shapes in treespec's signatures are checked while the tests run.

jaxtyping's own import hook wraps every function of a package, which made tests of rules take 1.7 times as long; this
one wraps those only whose signature has a shape (1.1 times), and checks nothing else in it. Other types are pyright's:
where a test passes a wrong one on purpose, treespec's own error must come out.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from beartype import beartype
from jaxtyping import jaxtyped


def install(packages: tuple[str, ...]) -> None:
    """Check the shapes of these packages, or modules: to be called before the first import of treespec."""
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
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and _has_shape(node):
                node.decorator_list.append(ast.copy_location(ast.Name("_with_shapes_checked", ast.Load()), node))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_with_shapes_checked"] = jaxtyped(typechecker=_check_shapes)
        super().exec_module(module)


def _has_shape(function: ast.FunctionDef) -> bool:
    hints = [
        function.returns,
        *(argument.annotation for argument in ast.walk(function.args) if isinstance(argument, ast.arg)),
    ]
    return any(hint is not None and "[Tensor, " in ast.unparse(hint) for hint in hints)


def _check_shapes(function: Callable) -> Callable:
    """`beartype` for the annotations with a shape."""
    hints = function.__annotations__.items()
    function.__annotations__ = {name: hint for name, hint in hints if "jaxtyping" in repr(hint)}
    return beartype(function)
