"""The map is true: every path on it exists, every room is on it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAX_ENTRIES = 25
"""Modules, `__init__.py` included, and folders with modules; `py.typed` and what old versions left do not count."""


def test_paths_on_the_map_exist() -> None:
    paths = set(re.findall(r"(?<![\w/.])((?:\w+/)+\w+\.py)\b", PAGE))
    assert len(paths) > 20
    assert {path for path in paths if not (ROOT / "treespec" / path).exists() and not (ROOT / path).exists()} == set()


def test_every_room_is_on_the_map() -> None:
    entries = [p for p in (ROOT / "treespec").iterdir() if p.suffix == ".py" or any(p.rglob("*.py"))]
    rooms = {entry.stem for entry in entries} - {"__init__"}
    assert len(entries) <= MAX_ENTRIES
    table = PAGE.split("## Packages")[1].split("\n## ")[0]
    assert {room for room in rooms if not re.search(rf"\[`{room}(?:\.py|/)?`\]", table)} == set()


def _rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]]


def _imported_rooms(room: str) -> set[str]:
    """The entries of treespec/ that an entry's files import, at the top or inside functions; not for type checkers."""
    path = ROOT / "treespec" / room
    found = set()
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        tree = ast.parse(file.read_text())
        tree.body = [node for node in tree.body if not ast.unparse(node).startswith("if TYPE_CHECKING:")]
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("treespec.")}
    return found - {room}


def test_the_column_of_imports_is_true() -> None:
    """A package imports from those below it; the column names the highest of them."""
    claims = {re.findall(r"\[`(\w+)", cells[0])[0]: cells[-1] for cells in _rows("Packages")}
    order = list(claims)
    for room, claim in claims.items():
        imported = sorted(_imported_rooms(room), key=order.index)
        assert all(order.index(name) > order.index(room) for name in imported), room
        if not imported:
            assert claim == "nothing", room
        else:
            is_only_one = len(imported) == 1 and imported[0] == order[-1]
            assert claim == f"`{imported[0]}`" + ("" if is_only_one else " and below"), room
