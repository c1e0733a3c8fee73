"""The committed pictures are what their scripts draw today."""

import re
from pathlib import Path

import pytest

from docs.tools import import_graph, pictures

DOCS = pictures.DOCS


def shapes(picture) -> list[str]:
    """Drawn paths with coordinates rounded: fonts are laid out alike on every machine, last digits may differ."""
    paths = re.findall(r' d="([^"]*)"', picture.read_text())
    return [re.sub(r"-?\d+\.\d+", lambda number: str(round(float(number[0]))), path) for path in paths]


def test_the_page_draws_the_committed_pictures(tmp_path, capsys):
    drawn = pictures.draw(tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["(0, 1, 4)  flows True", "(0,)  river"]
    assert [picture.name for picture in drawn] == sorted(path.name for path in (DOCS / "pictures").glob("*.svg"))
    for picture in drawn:
        assert shapes(picture) == shapes(DOCS / "pictures" / picture.name), "run `python docs/tools/pictures.py`"


def boxes(picture: Path) -> dict[str, int]:
    """The lines of every package that the import graph shows."""
    found = re.findall(r">([a-z]\w+)</text>.*?>([\d,]+)</text>", picture.read_text(), flags=re.DOTALL)
    return {name: int(lines.replace(",", "")) for name, lines in found}


def test_the_import_graph_has_about_the_sizes_of_today(tmp_path):
    import_graph.draw(tmp_path / "graph.svg")
    drawn, committed = boxes(tmp_path / "graph.svg"), boxes(DOCS / "assets" / "import_graph.svg")
    assert {"engine", "hf", "tree"} <= drawn.keys()
    assert committed == pytest.approx(drawn, rel=0.03, abs=30), "run `python docs/tools/import_graph.py`"
