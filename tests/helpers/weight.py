"""The library's import graph, read from the sources. `python tests/helpers/weight.py` prints today's numbers.

An edge is an import that runs when a module is imported, to the packages around what is imported too; *reachable* is
also what functions import, and what is named by an import path. Imports for type checkers do not count; what a package
loads at the first use of its name counts where the name is used. Lines are all lines of a file.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median

import networkx as nx

ROOT = Path(__file__).parents[2]
CORE = {"checks", "data", "drafters", "engine", "errors", "heads", "hf"}
CORE |= {"policies", "protocols", "registry", "sampling", "tree", "verification"}
"""The rooms that decode. All others are add-ons: they import the core, and the core imports none of them."""


@cache
def modules() -> dict[str, Path]:
    """Files by the module's name."""
    files = sorted((ROOT / "treespec").rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def graph(is_reachable: bool = False) -> nx.DiGraph:
    """Modules with their `lines`, and an edge from each to those that it imports.

    Args:
        is_reachable: with imports in functions, and those by import path, such as "treespec.cpu:optimize".
    """
    found = nx.DiGraph()
    for name, file in modules().items():
        text = file.read_text()
        found.add_node(name, lines=text.count("\n"))
        tree = ast.parse(text)
        names = {*_imported(_run_at_import(tree.body)), name.rpartition(".")[0]}
        if is_reachable:
            names |= {*_imported(_ever_run(tree)), *_by_path(tree)}
        found.add_edges_from((name, other) for other in map(_module_of, names) if other and other != name)
    return found


def _module_of(name: str) -> str | None:
    """The module that a dotted name names or is in: for a name that its package loads at the first use, the origin."""
    if name in modules():
        return name
    package, _, attribute = name.rpartition(".")
    return _module_of(source) if (source := lazy_names(package).get(attribute)) else package * (package in modules())


@cache
def lazy_names(package: str) -> dict[str, str]:
    """Origins of the names that a package loads at their first use, and imports for type checkers only."""
    if package not in modules() or modules()[package].name != "__init__.py":
        return {}
    body = ast.parse(modules()[package].read_text()).body
    typing = [inner for node in body if isinstance(node, ast.If) and _is_typing(node) for inner in node.body]
    imports = [node for node in typing if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in imports for alias in node.names}


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_typing(node: ast.If) -> bool:
    return "TYPE_CHECKING" in ast.unparse(node.test)


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _run_at_import(node.orelse if _is_typing(node) else [*node.body, *node.orelse])
        elif isinstance(node, (ast.Try, ast.With)):
            parts = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            yield from _run_at_import([*parts, *(s for h in getattr(node, "handlers", []) for s in h.body)])


def _ever_run(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node but what is for type checkers."""
    is_typing = isinstance(node, ast.If) and _is_typing(node)
    for child in node.orelse if is_typing else ast.iter_child_nodes(node):
        yield child
        yield from _ever_run(child)


def _by_path(tree: ast.Module) -> Iterator[str]:
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return (found[1] for text in strings if (found := re.fullmatch(r"(treespec(?:\.\w+)+)(?::[\w.]+)?", text)))


def closure(name: str, is_reachable: bool = False) -> dict[str, int]:
    """Everything that importing a module imports, itself too, with its lines; see `graph`."""
    found = graph(is_reachable)
    return {other: found.nodes[other]["lines"] for other in {name} | nx.descendants(found, name)}


def in_core(name: str) -> dict[str, int]:
    """Lines of the modules that one reaches through the core alone: an add-on's own imports are not the core's."""
    found = graph(is_reachable=True)
    core = found.subgraph(other for other in found if room(other) in CORE | {""})
    return {other: found.nodes[other]["lines"] for other in {name} | nx.descendants(core, name)}


def room(name: str) -> str:
    """The entry of treespec/ that a module is in."""
    return [*name.split("."), ""][1]


def edges_to_add_ons() -> list[tuple[str, str]]:
    """Imports of an add-on by a module of the core."""
    return sorted((a, b) for a, b in graph().edges if room(a) in CORE and room(b) not in CORE | {""})


def num_imports(name: str) -> int:
    """Modules of the library that a module imports itself, a package and what is in it counted once."""
    imported = set(graph().successors(name))
    return len([other for other in imported if not any(inner.startswith(f"{other}.") for inner in imported)])


def function_lengths() -> list[int]:
    """The lines of every function of the library, longest last."""
    trees = (ast.parse(file.read_text()) for file in modules().values())
    functions = (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    return sorted((n.end_lineno or n.lineno) - n.lineno + 1 for n in functions)


FOLDERS = ("treespec", "treespec/policies/control", "recipes", "benchmarks", "tests")


def counts() -> dict[str, tuple[int, ...]]:
    """All that is counted: files and pages after lines and words, what is reachable after what is imported, and last
    what is reachable through the core alone; functions, their median and longest lines."""
    files = {f"lines of {folder}": list((ROOT / folder).rglob("*.py")) for folder in FOLDERS}
    found = {name: (sum(p.read_text().count("\n") for p in paths), len(paths)) for name, paths in files.items()}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found["words of README and docs"] = sum(len(page.read_text().split()) for page in pages), len(pages)
    for name in ("treespec.engine.loop", "treespec.hf.generation.speculation"):
        closures = closure(name), closure(name, is_reachable=True), in_core(name)
        found[f"lines that {name} imports"] = tuple(sum(lines.values()) for lines in closures)
    lengths = function_lengths()
    return found | {"functions": (len(lengths), int(median(lengths)), lengths[-1])}


if __name__ == "__main__":
    for name, numbers in counts().items():
        print(f"{name:<56}{', '.join(f'{number:,}' for number in numbers):>25}")
