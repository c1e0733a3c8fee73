"""The snippets of the pages in docs/."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def run_snippet(section, names=None):
    """Run the one snippet of a section of docs/drafters.md; returns the names that it leaves."""
    text = (DOCS / "drafters.md").read_text().split(f"## {section}")[1].split("\n## ")[0]
    (snippet,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = dict(names or {})
    exec(compile(snippet, "docs/drafters.md", "exec"), names)
    return names
