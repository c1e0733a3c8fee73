"""The map is true: every path on it exists, every room is on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAX_ENTRIES = 18
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
    """The entries of treespec/ that an entry's files import, at the top or inside functions."""
    path = ROOT / "treespec" / room
    found = set()
    for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for node in ast.walk(ast.parse(file.read_text())):
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
    for number, _, owner, _ in rows:
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


TEST = r"`(tests/(?:\w+/)*test_\w+\.py)`"


def test_every_test_has_the_name_of_a_module_or_is_on_the_map() -> None:
    table = PAGE.split("## Tests")[1].split("| test | modules |")[0]
    across = set(re.findall(TEST, "\n".join(line for line in table.splitlines() if line.startswith("|"))))
    unnamed = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        path = file.relative_to(ROOT / "tests").parent / file.stem.removeprefix("test_")
        tested = [(ROOT / "treespec" / path), (ROOT / path)]
        if not any(p.with_suffix(kind).exists() for p in tested for kind in ("", ".py", ".md")):
            unnamed.add(str(file.relative_to(ROOT)))
    assert unnamed == across, "rename it after the module that it tests, or list it under Tests"


def test_every_module_has_a_test_of_its_name_or_is_listed_with_one_on_the_map() -> None:
    table = PAGE.split("| test | modules |")[1].split("\n## ")[0]
    listed = []
    for test, modules in re.findall(rf"^\| {TEST} \| (.*) \|$", table, flags=re.MULTILINE):
        assert (ROOT / test).exists(), test
        for part in modules.split("; "):
            folder, *names = re.findall(r"`([\w./]+)`", part)
            listed += [f"{folder}{name}.py" for name in names] or [folder]
    assert len(listed) == len(set(listed)), "a module is listed with one test"
    rooms = ROOT / "treespec"
    modules = [file.relative_to(rooms) for file in rooms.rglob("*.py") if not file.stem.startswith("__")]
    untested = {str(path) for path in modules if not (ROOT / "tests" / path.parent / f"test_{path.name}").exists()}
    assert set(listed) == untested, "give it a test of its name, or list it under Tests"


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
