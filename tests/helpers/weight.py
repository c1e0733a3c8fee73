"""The library's import graph, read from the sources. `python tests/helpers/weight.py` prints today's numbers.

An edge is an import that runs when a module is imported: not one inside a function, nor one for type checkers. Lines
are all lines of a file.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median

import networkx as nx

ROOT = Path(__file__).parents[2]
CORE = set("errors checks registry protocols data sampling tree verification policies drafters heads engine hf".split())  # noqa: SIM905
"""The rooms that decode. All others are add-ons: they import the core, and the core imports none of them."""


@cache
def modules() -> dict[str, Path]:
    """Files by the module's name."""
    files = sorted((ROOT / "treespec").rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


@cache
def graph() -> nx.DiGraph:
    """Modules with their `lines`, and an edge from each to those that it imports."""
    found = nx.DiGraph()
    for name, file in modules().items():
        text = file.read_text()
        found.add_node(name, lines=text.count("\n"))
        found.add_edges_from((name, other) for other in _imported(ast.parse(text)) if other in modules())
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in _run_at_import(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            is_typing = "TYPE_CHECKING" in ast.unparse(node.test)
            yield from _run_at_import(node.orelse if is_typing else [*node.body, *node.orelse])
        elif isinstance(node, (ast.Try, ast.With)):
            parts = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            yield from _run_at_import([*parts, *(s for h in getattr(node, "handlers", []) for s in h.body)])


def closure(name: str) -> dict[str, int]:
    """Everything that importing a module imports by name, itself too, with its lines; packages' own files as named."""
    return {other: graph().nodes[other]["lines"] for other in {name} | nx.descendants(graph(), name)}


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


def way_limits() -> tuple[int, int]:
    """The frames from `generate` to a pass and the kinds of objects that carry a call, as the test of both has them."""
    text = (ROOT / "tests/hf/generation/test_way.py").read_text()
    frames, carriers = re.findall(r"^(?:MOST_FRAMES|CARRIERS) = (.*)", text, re.MULTILINE)
    return int(frames), len(ast.literal_eval(carriers))


def report() -> str:
    """All that is counted."""
    rows = []
    for folder in ("treespec", "treespec/policies/control", "recipes", "benchmarks", "tests"):
        files = list((ROOT / folder).rglob("*.py"))
        rows.append(f"{folder}: {sum(file.read_text().count(chr(10)) for file in files):,} lines, {len(files)} files")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    rows.append(f"README and docs: {sum(len(page.read_text().split()) for page in pages):,} words, {len(pages)} pages")
    for name in ("engine.loop", "hf.generation.speculation"):
        rows.append(f"imported by treespec.{name}: {sum(closure(f'treespec.{name}').values()):,} lines")
    rows.append("from generate to a pass: {} frames at most, {} kinds of objects carry a call".format(*way_limits()))
    rows.append(f"hf/generation/decode.py: {num_imports('treespec.hf.generation.decode')} imports")
    rows += [f"core to add-ons: {len(edges_to_add_ons())} imports", *(f"  {a} -> {b}" for a, b in edges_to_add_ons())]
    rows.append(f"import contracts: {(ROOT / '.importlinter').read_text().count('[importlinter:contract')}")
    lengths = function_lengths()
    over = sum(length > 50 for length in lengths)
    rows.append(
        f"functions: {len(lengths):,}, median {median(lengths):.0f} lines, {over} above 50, longest {lengths[-1]}"
    )
    return "\n".join(rows)


if __name__ == "__main__":
    print(report())
