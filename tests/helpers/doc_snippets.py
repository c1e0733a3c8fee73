"""The snippets of the pages in docs/. They run from `examples/`, whose `example_models` stand in for real ones."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS.parent / "examples"


def run_page(page):
    """Run a page's snippets one after the other; returns the names that they leave."""
    return _run(page, (DOCS / page).read_text(), {})


def run_opening(page):
    """Run the snippets above a page's first section; returns the names that they leave."""
    return _run(page, _opening(page), {})


def run_snippet(section, names=None, page="drafters.md"):
    """Run the page's opening and the one snippet of a section; returns the names that they leave."""
    text = (DOCS / page).read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    (_,) = _snippets(text)
    return _run(page, text, run_opening(page) | (names or {}))


def _run(page, text, names):
    with _examples_on_path():
        for snippet in _snippets(text):
            exec(compile(snippet, f"docs/{page}", "exec"), names)
    return names


@contextmanager
def _examples_on_path():
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield
    finally:
        sys.path.remove(str(EXAMPLES))


def _opening(page):
    return (DOCS / page).read_text().split("\n## ")[0]


def _snippets(text):
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
