"""What a release says of itself is the same wherever it stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import treespec

ROOT = Path(__file__).parents[2]


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [project["version"]] == citation == [treespec.__version__]


def test_commands_of_the_contributors_page_exist() -> None:
    page, makefile = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "Makefile").read_text()
    wanted = set(re.findall(r"`make ([\w-]+)`", page))
    assert wanted
    assert not [target for target in wanted if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
    links = re.findall(r"\]\((?!http)([\w./-]+)", page)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
