"""Whether the sources of vLLM that the plugin relies on are those that it was written for, without importing them.

`python tests/helpers/vllm_sources.py`, with vLLM's Python, names the parts that differ from the newest version whose
hashes stand in treespec/vllm/touched.toml; `--record` writes those of the installed version there, without parts that
are gone. Other arguments are parts to be added.
"""

import ast
import functools
import hashlib
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

FILE = Path(__file__).parents[2] / "treespec/vllm/touched.toml"
WHAT_TO_DO = (
    "read how they differ, change the plugin where it matters, and once tests/vllm passes run "
    "`python tests/helpers/vllm_sources.py --record`"
)


def minor_of(version: str) -> str:
    """A version without its patch number."""
    return ".".join(version.split(".")[:2])


def known_hashes(minor: str) -> tuple[str, Mapping[str, str]]:
    """The version whose hashes an installed one, such as "0.32", is compared with: itself, or the newest. And these."""
    sources = tomllib.loads(FILE.read_text())["sources"]
    return (minor, sources[minor]) if minor in sources else max(sources.items(), key=_number)


def _number(item: tuple[str, object]) -> list[int]:
    return [int(part) for part in item[0].split(".")]


def differing(known: Mapping[str, str]) -> list[str]:
    """The parts of installed modules whose source has another hash, or none: they are gone."""
    return [
        part if found else f"{part} (gone)" for part, digest in known.items() if (found := source_hash(part)) != digest
    ]


def source_hash(part: str) -> str | None:
    """The beginning of the hash of the source of "module:Class.method", its decorators included; None: there is none.

    What a class inherits is its base's. The module is read, not imported: some need a GPU, others change torch.
    """
    module, _, names = part.partition(":")
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).read_text()
    node: ast.AST = _parsed(text)
    for name in names.split("."):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        # The last one counts where there are overloads, or methods that a condition chooses from.
        inner = [child for child in _statements(node) if isinstance(child, kinds) and child.name == name]
        if not inner:
            return None
        node = inner[-1]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    first = min(part.lineno for part in [node, *node.decorator_list])
    lines = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


_parsed = functools.cache(ast.parse)


def _statements(node: ast.AST) -> list[ast.AST]:
    """Those of a module or class, also under conditions."""
    found = []
    for child in ast.iter_child_nodes(node):
        found += [child, *(_statements(child) if isinstance(child, ast.If | ast.Try) else [])]
    return found


def record(minor: str, parts: Iterable[str]) -> None:
    """Write the hashes of the installed version into the table, in place of those that it has there.

    Raises `ValueError`: a part is not there.
    """
    found = {part: source_hash(part) for part in sorted(parts)}
    if gone := [part for part, digest in found.items() if digest is None]:
        raise ValueError(f"the installed vLLM has no source of {', '.join(gone)}")
    text, header = FILE.read_text(), f'[sources."{minor}"]\n'
    rest = re.sub(rf"\n{re.escape(header)}[^\[]*", "", text)
    lines = [f'"{part}" = "{digest}"\n' for part, digest in found.items()]
    FILE.write_text(f"{rest.rstrip()}\n\n{header}{''.join(lines)}")


def main(arguments: list[str]) -> None:
    """See the module."""
    from vllm.version import __version__  # pyright: ignore[reportMissingImports]

    minor = minor_of(__version__)
    newest, known = known_hashes(minor)
    print(f"vLLM {minor}, compared with {newest}: {', '.join(differing(known)) or 'all sources are the same'}")
    if arguments:
        record(minor, {*filter(source_hash, known), *arguments} - {"--record"})


if __name__ == "__main__":
    main(sys.argv[1:])
