"""A release's version is the same wherever it stands."""

import re
import tomllib
from pathlib import Path

import treespec

ROOT = Path(__file__).parents[2]


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [project["version"]] == citation == [treespec.__version__]
