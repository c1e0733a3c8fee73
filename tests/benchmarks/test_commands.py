"""What the documents and the results say about the benchmarks: commands, files and links exist; every script starts."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "recipes").rglob("*.md")]
RESULTS = sorted(path for path in (BENCHMARKS / "results").rglob("*") if path.suffix in (".md", ".json"))


def scripts(folder: str) -> set[str]:
    """Names that `python -m` takes."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        if path.stem == "__main__" or 'if __name__ == "__main__"' in path.read_text():
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.add(".".join(parts).removesuffix(".__main__"))
    return found


SCRIPTS = scripts("benchmarks") | scripts("recipes")


def test_commands_that_are_named_exist() -> None:
    named = set()
    for path in [*PAGES, *RESULTS, ROOT / "Makefile", *BENCHMARKS.rglob("*.py"), *(ROOT / "recipes").rglob("*.py")]:
        named |= set(re.findall(r"(?:python|\$\(BIN\)/python) -m ((?:benchmarks|recipes)[\w.]*\w)", path.read_text()))
    assert len(named) > 15
    assert named - SCRIPTS == set()


def test_the_page_of_benchmarks_lists_every_script() -> None:
    table = (ROOT / "docs" / "benchmarks.md").read_text().split("| `python -m benchmarks.` |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    listed = {f"benchmarks.{name}" for cell in cells for name in re.findall(r"`([\w.]+)", cell)} - {"benchmarks.scipy"}
    assert listed == scripts("benchmarks")


@pytest.mark.parametrize("page", [*PAGES, *(path for path in RESULTS if path.suffix == ".md")], ids=lambda p: p.name)
def test_links_lead_somewhere(page) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


def test_files_of_the_repository_that_are_named_exist() -> None:
    for page in PAGES:
        named = re.findall(r"`((?:benchmarks|recipes)/[\w./-]*)`", page.read_text())
        assert [name for name in named if not (ROOT / name).exists()] == [], page.name


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_script_says_what_it_does(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__")
    assert end.value.code == 0
    assert "usage:" in capsys.readouterr().out
