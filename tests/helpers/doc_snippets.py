"""The snippets of the pages in docs/."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def run_page(page):
    """Run a page's snippets one after the other; returns the names that they leave."""
    names = {}
    for snippet in _snippets((DOCS / page).read_text()):
        exec(compile(snippet, f"docs/{page}", "exec"), names)
    return names


def run_snippet(section, names=None, page="drafters.md"):
    """Run the one snippet of a section of a page; returns the names that it leaves."""
    text = (DOCS / page).read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    (snippet,) = _snippets(text)
    names = dict(names or {})
    exec(compile(snippet, f"docs/{page}", "exec"), names)
    return names


def _snippets(text):
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
