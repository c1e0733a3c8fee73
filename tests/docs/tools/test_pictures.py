"""The pictures of docs/how.md follow its code."""

import re

from docs.tools.pictures import DOCS, draw


def shapes(picture) -> list[str]:
    """What is drawn, with coordinates rounded: fonts are laid out alike on every machine, last digits may differ."""
    paths = re.findall(r' d="([^"]*)"', picture.read_text())
    return [re.sub(r"-?\d+\.\d+", lambda number: str(round(float(number[0]))), path) for path in paths]


def test_the_page_draws_the_committed_pictures(tmp_path, capsys):
    drawn = draw(tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["(0, 1, 4)  flows True", "(0,)  river"]
    assert [picture.name for picture in drawn] == sorted(path.name for path in (DOCS / "pictures").glob("*.svg"))
    for picture in drawn:
        assert shapes(picture) == shapes(DOCS / "pictures" / picture.name), "run `python docs/tools/pictures.py`"
