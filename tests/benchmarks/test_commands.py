"""Commands, files and links that documents and results name for the benchmarks exist; every script starts."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "recipes").rglob("*.md"),
]
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


COMMAND = re.compile(r"(?:python|\$\(BIN\)/python) -m ((?:benchmarks|recipes)[\w.]*\w)([^`\n]*)")


def named_options() -> dict[str, set[str]]:
    """The options of every command that a page, a result, a docstring or the Makefile names, by script."""
    named: dict[str, set[str]] = {}
    for path in [*PAGES, *RESULTS, ROOT / "Makefile", *BENCHMARKS.rglob("*.py"), *(ROOT / "recipes").rglob("*.py")]:
        for script, arguments in COMMAND.findall(path.read_text().replace("\\\n", " ")):
            named.setdefault(script, set()).update(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", arguments))
    return named


OPTIONS = named_options()


def test_commands_that_are_named_exist() -> None:
    assert len(OPTIONS) > 8
    assert OPTIONS.keys() <= SCRIPTS


def test_the_page_of_benchmarks_lists_every_script() -> None:
    table = (ROOT / "docs" / "benchmarks.md").read_text().split("| `python -m benchmarks.` |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    listed = {f"benchmarks.{name}" for cell in cells for name in re.findall(r"`([\w.]+)", cell)}
    assert listed == scripts("benchmarks")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules.*:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_script_says_what_it_does_and_has_the_options_that_are_named(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(name, run_name="__main__")
    assert end.value.code == 0
    help_text = capsys.readouterr().out
    assert "usage:" in help_text
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    assert OPTIONS.get(name, set()) <= known, "a page or a result names an option that the script does not have"
