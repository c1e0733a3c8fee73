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


def test_every_numbering_has_its_owner() -> None:
    """The owner is defined where the map says, and its text speaks of the number."""
    rows = _rows("Numbers that name a node")
    assert len(rows) == 10
    for number, _, owner in rows:
        name, file = re.findall(r"`([\w./]+)`", owner)[:2]
        text = (ROOT / "treespec" / file).read_text()
        (found,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
        assert number.split()[0] in (ast.get_source_segment(text, found) or "").lower(), name


def test_names_in_the_text_exist() -> None:
    """Every name in backticks is in the code, or in the page's own snippets."""
    snippets = re.findall(r"```.*?```", PAGE, flags=re.DOTALL)
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    files = [file for room in ("treespec", "benchmarks") for file in (ROOT / room).rglob("*.py")]
    code = "\n".join([*snippets, *(file.read_text() for file in files)])
    words = {"py", *re.findall(r"\w+", code)}
    names = {word for name in re.findall(r"`([A-Za-z_][\w.]*)`", prose) for word in re.findall(r"\w+", name)}
    assert len(names) > 60
    assert names - words == set()


def _listed_letters() -> set[str]:
    table = PAGE.split("## Axis letters")[1].split("\n## ")[0]
    return {cell for line in table.splitlines() for cell in line.strip("| ").split(" | ") if re.fullmatch(r"\w", cell)}


def _own_letters(text: str) -> set[str]:
    """The letters of a module's `Axis letters:` line."""
    found = re.search(r"Axis letters: (.*?)[.\n]", text)
    return set(re.findall(r"(?:^|, )(\w) ", found.group(1))) if found else set()


SHAPE_IN_SIGNATURE = r'(?:Int|UInt8|Float|Bool|Shaped|Num|Real)\[[\w.]+, "([^"]*)"\]'
SHAPE_IN_TEXT = r"(?<![\w\])])\[([^\[\]()\n\"'`=]{1,40})\]"
AXIS = r"\.\.\.|1 or [A-Z]|<= [A-Z]|[A-Z] or 1|\d+|[\dA-Za-z](?: ?[-+*/]? ?[\dA-Za-z])*"


def test_axis_letters_mean_the_same_everywhere() -> None:
    listed, wrong = _listed_letters(), []
    assert len(listed) > 20
    for file in (*(ROOT / "treespec").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        text = file.read_text()
        used = {
            letter for shape in re.findall(SHAPE_IN_SIGNATURE, text) for letter in re.findall(r"\b[A-Za-z]\b", shape)
        }
        for shape in re.findall(SHAPE_IN_TEXT, text):
            if all(re.fullmatch(AXIS, axis) for axis in shape.split(", ")):
                used |= set(re.findall(r"\b[A-Z]\b", shape))
        own = _own_letters(text)
        wrong += [f"{file}: {letter} is not on the map" for letter in sorted(used - listed - own)]
        wrong += [f"{file}: {letter} has a meaning on the map" for letter in sorted(own & listed)]
    assert wrong == []
