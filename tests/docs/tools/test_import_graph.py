"""The picture of the import graph shows today's packages and about how large they are."""

import re
from pathlib import Path

import pytest

from docs.tools.import_graph import ROOT, draw

PICTURE = ROOT / "docs/assets/import_graph.svg"


def boxes(picture: Path) -> dict[str, int]:
    """The lines of every package that is drawn."""
    found = re.findall(r">([a-z]\w+)</text>.*?>([\d,]+)</text>", picture.read_text(), flags=re.DOTALL)
    return {name: int(lines.replace(",", "")) for name, lines in found}


def test_the_picture_has_the_packages_of_today(tmp_path):
    draw(tmp_path / "graph.svg")
    drawn = boxes(tmp_path / "graph.svg")
    assert {"engine", "hf", "tree"} <= drawn.keys()
    assert boxes(PICTURE) == pytest.approx(drawn, rel=0.03, abs=30), "run `python docs/tools/import_graph.py`"
