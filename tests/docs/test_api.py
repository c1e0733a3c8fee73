"""The site's pages: the API reference has every public name once, the navigation every page."""

import importlib
import re
from collections import Counter

import pytest
import yaml
from helpers.doc_snippets import DOCS, run_opening

ROOT = DOCS.parent
NAMES = [name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)]
PUBLIC = (
    "treespec",
    "treespec.drafters",
    "treespec.errors",
    "treespec.hf",
    "treespec.lab",
    "treespec.lab.diagnosis",
    "treespec.lab.trace",
    "treespec.policies",
    "treespec.protocols",
    "treespec.testing",
    "treespec.training",
    "treespec.tree",
    "treespec.verification",
    "treespec.literature",
    "treespec.literature.optimum",
    "treespec.literature.textbook",
    "treespec.viz",
    "treespec.vllm",
)
MODULES = {"errors", "protocols", "cpu"}


def resolved(name):
    """The member of a package, where a module has its name too."""
    package, _, member = name.rpartition(".")
    return getattr(importlib.import_module(package), member)


def test_names_of_the_reference_exist_and_are_listed_once():
    assert all(resolved(name) is not None for name in NAMES)
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module
    ]
    shown = [resolved(name) for name in NAMES]
    missing = [
        name
        for name in names
        if not name.startswith("_") and name not in MODULES and not any(getattr(loaded, name) is one for one in shown)
    ]
    assert missing == []


@pytest.mark.parametrize("page", sorted(page.name for page in (DOCS / "api").glob("*.md")))
def test_a_page_opens_with_a_snippet_that_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_opening(f"api/{page}")


def test_every_page_is_in_the_navigation():
    def pages(entry):
        entries = entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else None
        return [entry] if entries is None else [page for one in entries for page in pages(one)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert Counter(listed) == Counter(["index.md", "tour.md", *(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))])
