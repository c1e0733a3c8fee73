"""The picture of the import graph shows today's packages."""

import re

from docs.tools.import_graph import ROOT, draw


def names(picture) -> set[str]:
    return set(re.findall(r">([a-z]\w+)<", picture.read_text()))


def test_the_picture_has_the_packages_of_today(tmp_path):
    draw(tmp_path / "graph.svg")
    drawn = names(tmp_path / "graph.svg")
    assert {"engine", "hf", "tree"} <= drawn
    assert drawn == names(ROOT / "docs/assets/import_graph.svg"), "run `python docs/tools/import_graph.py`"
