"""Make the pictures of docs/how.md again: `python docs/tools/pictures.py`. The page's own snippets draw them."""

import argparse
import contextlib
import re
from pathlib import Path

import matplotlib

DOCS = Path(__file__).parents[1]
SETTINGS = {"svg.hashsalt": "treespec"}  # The same ids in every run.


def draw(folder: Path) -> list[Path]:
    """Run the page's snippets in the folder; returns the pictures."""
    page = (DOCS / "how.md").read_text()
    names: dict = {}
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder), matplotlib.rc_context(SETTINGS):
        for snippet in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
            exec(compile(snippet, "docs/how.md", "exec"), names)
    pictures = sorted(folder.glob("*.svg"))
    for picture in pictures:  # Without the date and matplotlib's version, so that a picture changes with the code only.
        text = re.sub(r" *<metadata>.*?</metadata>\n", "", picture.read_text(), flags=re.DOTALL)
        picture.write_text(re.sub(r"[ \t]+\n", "\n", text))
    return pictures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DOCS / "pictures", help="default: %(default)s")
    for path in draw(parser.parse_args().folder.resolve()):
        print(path)
