"""A hook of mkdocs: links lead into the repository, as they do on GitHub, and what they lead to is part of the site.

The README is the start page, the notebook a page of its own. Results become pages, their pictures and numbers files,
source files pages that show them. All paths here are relative to the repository's root, with slashes.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OWN_PAGES = {"README.md": "index.md", "examples/tour.ipynb": "tour.md"}
AS_THEY_ARE = {".png", ".svg", ".json", ".csv"}
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def site_path(path: str) -> str:
    """Where the site has a file or folder of the repository."""
    if path in OWN_PAGES:
        return OWN_PAGES[path]
    if _is_page(path):
        return path.removeprefix("docs/")
    is_kept = Path(path).suffix in AS_THEY_ARE or path.endswith(".md")
    return f"repository/{path}" if is_kept else f"repository/{path}.md"


def _is_page(path: str) -> bool:
    """Whether mkdocs finds the file itself."""
    return path.startswith("docs/") and not path.startswith("docs/tools/")


def linked(text: str, page: str) -> list[str]:
    """The files and folders of the repository that a page links to."""
    found: list[str] = []
    _replace(text, page, lambda target, link: found.append(target) or link)
    return found


def with_site_links(text: str, page: str) -> str:
    """The page's text, its links between the repository's files turned into links between the site's."""
    here = posixpath.dirname(site_path(page))
    return _replace(text, page, lambda target, _: posixpath.relpath(site_path(target), here or "."))


def _replace(text: str, page: str, new_link: Callable[[str, str], str]) -> str:
    """Replace links to existing files and folders outside of code."""

    def one(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[1]))
        is_ours = "://" not in match[1] and not target.startswith("..") and (ROOT / target).exists()
        return new_link(target, match[1]) if is_ours else match[1]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(one, part) for part in parts)


def page_of(path: str) -> str:
    """The page that shows a file or folder of the repository."""
    if (ROOT / path).is_dir():
        return NOT_SEARCHED + _contents(path)
    text = (ROOT / path).read_text()
    if path.endswith(".ipynb"):
        return notebook_page(json.loads(text))
    if path.endswith(".md"):
        return ("" if path in OWN_PAGES else NOT_SEARCHED) + with_site_links(text, path)
    language = {".py": "python", ".sh": "sh"}.get(Path(path).suffix, "text")
    return f"{NOT_SEARCHED}# {Path(path).name}\n\n`{path}`\n\n~~~~~{language}\n{text}\n~~~~~\n"


def _contents(path: str) -> str:
    lines = [f"# {path}", ""]
    for entry in sorted((ROOT / path).iterdir()):
        if entry.name.startswith((".", "__")):
            continue
        about = (ast.get_docstring(ast.parse(entry.read_text())) or "") if entry.suffix == ".py" else ""
        first = about.split("\n\n")[0].replace("\n", " ")
        lines.append(f"- `{entry.name}{'/' if entry.is_dir() else ''}`" + (f": {first}" if first else ""))
    return "\n".join(lines) + "\n"


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook's cells with their stored outputs: texts and pictures."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        parts.append(f"~~~~~python\n{source}\n~~~~~" if is_code else with_site_links(source, "examples/tour.ipynb"))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "")))
            if "image/png" in data:
                picture = "".join(data["image/png"]).replace("\n", "")
                parts.append(f'<img alt="output" src="data:image/png;base64,{picture}">')
            elif text.strip():
                parts.append(f"~~~~~text\n{text.rstrip()}\n~~~~~")
    return "\n\n".join(parts) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add what the pages link to, and what that links to."""
    from mkdocs.structure.files import File, InclusionLevel

    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    waiting = [*OWN_PAGES, *(link for page in pages for link in linked((ROOT / page).read_text(), page))]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or _is_page(path):
            continue
        seen.add(path)
        level = InclusionLevel.INCLUDED if path in OWN_PAGES else InclusionLevel.NOT_IN_NAV
        if Path(path).suffix in AS_THEY_ARE:
            files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path), inclusion=level))
            continue
        files.append(File.generated(config, site_path(path), content=page_of(path), inclusion=level))
        if path.endswith(".md"):
            waiting += linked((ROOT / path).read_text(), path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pages of docs/; the others have the site's links already."""
    return markdown if page.file.generated_by else with_site_links(markdown, f"docs/{page.file.src_uri}")
